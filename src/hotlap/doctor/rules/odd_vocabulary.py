"""A vocabulary whose size does not fit the tiles of tensor cores.

The gain is that of products at the rate that large ones usually reach, if a profile tells theirs.
"""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.doctor.kernels import cost_of_shapes
from hotlap.doctor.model import vocabularies
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "odd_vocabulary"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Embeddings of many entries whose number 64 does not divide."""
    odd = [size for size in sorted(vocabularies(training)) if size % limits.vocabulary_tile]
    if not training.is_on_gpu or not odd:
        return
    tile = limits.vocabulary_tile
    padded = -(-odd[-1] // tile) * tile
    severity, gain = cost_of_shapes(case.kernels, "matmul", limits)
    yield Finding(
        NAME,
        severity,
        f"the vocabulary of {odd[-1]:,} entries is no multiple of {tile}",
        (f"the layer that gives the logits has as many outputs, its last tile {odd[-1] % tile}",),
        gain,
        f"make the embedding {padded:,} entries large; the added ones are never used",
    )


RULE = training_rule(NAME, check)
