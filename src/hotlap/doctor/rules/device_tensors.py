"""Tensors are made on the host and then moved, where they could be made on the device."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.doctor.cure import places
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.script import keyword, last_name
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.levers.common.source import FUNCTIONS
from hotlap.records.finding import Finding

NAME = "device_tensors"
MAKERS = ("zeros", "ones", "full", "rand", "randn", "randint", "arange", "tensor", "eye", "empty")


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """`torch.zeros(…).to(device)` in the loop, or in a model's forward."""
    if not training.is_on_gpu:
        return
    forwards = [
        (file, node)
        for file, function in training.script.walk(*FUNCTIONS)
        if isinstance(function, FUNCTIONS) and function.name == "forward"
        for node in ast.walk(function)
    ]
    nodes = [*training.script.in_steps(), *forwards]
    sites = [file.site(node) for file, node in nodes if _is_moved(node)]
    if not sites:
        return
    yield Finding(
        NAME,
        "advice",
        "tensors are made on the host and moved in every step",
        (f"at {places(sites)}",),
        None,
        f"{places(sites)}: device=… in the call that makes it",
    )


def _is_moved(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    made = node.func.value
    is_made = isinstance(made, ast.Call) and ast.unparse(made.func).startswith("torch.")
    return (
        node.func.attr in ("to", "cuda")
        and is_made
        and isinstance(made, ast.Call)
        and last_name(made.func) in MAKERS
        and keyword(made, "device") is None
    )


RULE = training_rule(NAME, check)
