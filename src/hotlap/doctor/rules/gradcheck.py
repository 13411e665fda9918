"""Gradients are compared with finite differences in the loop: many forward passes for each."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.doctor.cure import places
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.script import last_name
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding

NAME = "gradcheck"
CHECKS = ("gradcheck", "gradgradcheck")


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Calls of torch's own check in a step."""
    sites = [
        file.site(node)
        for file, node in training.script.in_steps()
        if isinstance(node, ast.Call) and last_name(node.func) in CHECKS
    ]
    if not sites:
        return
    yield Finding(
        NAME,
        "warning",
        "gradients are checked while training",
        (f"torch.autograd.gradcheck at {places(sites)}",),
        None,
        f"{places(sites)}: in a test of the layer, not in the loop",
    )


RULE = training_rule(NAME, check)
