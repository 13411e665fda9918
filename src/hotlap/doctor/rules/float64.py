"""The model computes in double precision: half as fast at best, and far slower on a GPU.

The gain is half of forward, backward and optimizer.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.doctor.cure import places, without
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "float64"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """The types of the model's parameters."""
    dtypes = {dtype for one in training.workload.models for dtype in one.facts.get("dtypes", ())}
    if "float64" not in dtypes:
        return
    sites = [
        file.site(node)
        for file, node in training.script.walk(ast.Attribute)
        if isinstance(node, ast.Attribute) and node.attr in ("double", "float64")
    ]
    yield Finding(
        NAME,
        "warning",
        "the model computes in double precision",
        (f"float64 is named at {places(sites)}" if sites else "its parameters are float64",),
        without(0.5 * training.share("forward", "backward", "optimizer")),
        "model.float(), and inputs with .float(); numpy's arrays are float64 unless told otherwise",
    )


RULE = training_rule(NAME, check)
