"""Attention is written out: all scores go through memory, which fused kernels never write down.

The gain is that of a step without what the modules with these functions do beside products, where a
profile has seen it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hotlap.doctor.cure import place, places, without
from hotlap.doctor.kernels import Kernels
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.script import last_name
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.levers.common.source import FUNCTIONS
from hotlap.records.finding import Finding

NAME = "attention_by_hand"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """A function with a softmax between two products."""
    found = [(file, node) for file, node in training.script.walk(*FUNCTIONS) if _attends(node)]
    if not found:
        return
    sites = [file.site(node) for file, node in found]
    spans = [
        (file.path, range(node.lineno, 1 + (node.end_lineno or node.lineno)))
        for file, node in found
        if isinstance(node, FUNCTIONS)
    ]
    yield Finding(
        NAME,
        "advice",
        "attention is computed by hand",
        (f"a softmax between two products in the function at {places(sites)}",),
        _gain(case.kernels, spans),
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


def _gain(kernels: Kernels | None, spans: list[tuple[str, range]]) -> float | None:
    """A line that is no call of a function is not known to a profile, but its module is."""
    if kernels is None or not kernels.is_on_device:
        return None
    moving = kernels.top("elementwise", "norm", "copy")
    modules = {
        one.site.module
        for op in moving
        for one in op.sites
        if any(one.site.file == path and one.site.line in lines for path, lines in spans)
    }
    moved_s = sum(
        op.seconds * one.share
        for op in moving
        for one in op.sites
        if one.site.module and one.site.module in modules
    )
    return without(kernels.share(moved_s)) if moved_s else None


RULE = training_rule(NAME, check)
