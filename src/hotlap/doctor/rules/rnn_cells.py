"""A recurrence is written as a loop over cells: cuDNN runs whole sequences in few kernels."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import places
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "rnn_cells"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Cells in the model."""
    kinds = ("LSTMCell", "GRUCell", "RNNCell")
    found = [kind for kind in kinds if training.workload.n_modules(kind)]
    if not found:
        return
    sites = [file.site(call) for file, call in training.script.calls(*found)]
    yield Finding(
        NAME,
        "advice",
        f"the recurrence goes through {found[0]}, step by step in Python",
        (f"made at {places(sites)}" if sites else "a module of the model",),
        None,
        f"torch.nn.{found[0].removesuffix('Cell')} on whole sequences, if nothing needs the loop",
    )


RULE = training_rule(NAME, check)
