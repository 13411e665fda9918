"""The script compiles its model, and nothing of it was compiled.

`module.compile()` leaves roots of torch's own classes as they are, an nn.Sequential for one, and
says nothing. The gain is what torch.compile usually saves of forward and backward.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.cure import lever_gain, places
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "compile_nothing"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """A model whose `compile()` was called, of a class that is skipped."""
    found = [one for one in training.workload.models if one.facts.get("is_compiled_in_name")]
    if not found:
        return
    kind = found[0].facts["kind"]
    sites = [file.site(call) for file, call in training.script.calls("compile")]
    yield Finding(
        NAME,
        "warning",
        f"the {kind} is compiled in name only",
        (f"{kind}.compile() at {places(sites)} does nothing for torch's own classes",),
        lever_gain(training, "compile"),
        f"{places(sites)}: model = torch.compile(model)",
    )


RULE = training_rule(NAME, check)
