"""Validation runs in training mode: dropout is on, and batch norms learn from validation data."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.doctor.cure import place, places
from hotlap.doctor.model import has_modes
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.script import last_name
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.levers.common.source import FUNCTIONS
from hotlap.records.finding import Finding

NAME = "validates_in_training"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """A loop without gradients, and a script that never says `eval()`."""
    script = training.script
    if not has_modes(training) or any(True for _ in script.calls("eval")):
        return
    if any(True for _ in script.calls("train")):
        return  # somebody has thought of modes: `train(False)`, or a framework
    sites = [file.site(node) for file, node in script.walk() if _is_validation(node)]
    if not sites:
        return
    yield Finding(
        NAME,
        "warning",
        "validation runs with the model in training mode",
        (f"the loop without gradients at {places(sites)}; the model has dropout or batch norms",),
        None,
        f"{place(sites[0])}: model.eval() before it, model.train() behind it",
    )


def _is_validation(node: ast.AST) -> bool:
    """A block, or a function, without gradients and with a loop in it."""
    if isinstance(node, ast.With):
        heads = [item.context_expr for item in node.items]
    elif isinstance(node, FUNCTIONS):
        heads = node.decorator_list
    else:
        return False
    names = {last_name(o.func if isinstance(o, ast.Call) else o) for o in heads}
    loops = any(isinstance(inner, ast.For) for inner in ast.walk(node))
    return loops and bool(names & {"no_grad", "inference_mode"})


RULE = training_rule(NAME, check)
