"""Attention is written out: all scores go through memory, which fused kernels never write down."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.doctor.cure import place, places
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.script import last_name
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.levers.common.source import FUNCTIONS
from hotlap.records.finding import Finding

NAME = "attention_by_hand"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """A function with a softmax between two products."""
    sites = [file.site(node) for file, node in training.script.walk(*FUNCTIONS) if _attends(node)]
    if not sites:
        return
    yield Finding(
        NAME,
        "advice",
        "attention is computed by hand",
        (f"a softmax between two products in the function at {places(sites)}",),
        None,
        f"{place(sites[0])}: torch.nn.functional.scaled_dot_product_attention",
    )


def _attends(function: ast.AST) -> bool:
    """In the function itself: those defined in it are looked at by themselves."""
    calls = [o for o in ast.walk(function) if isinstance(o, ast.Call)]
    names = [last_name(call.func) for call in calls]
    operators = sum(
        isinstance(o, ast.BinOp) and isinstance(o.op, ast.MatMult) for o in ast.walk(function)
    )
    n_products = operators + sum(name in ("matmul", "bmm", "einsum", "baddbmm") for name in names)
    return "softmax" in names and n_products > 1


RULE = training_rule(NAME, check)
