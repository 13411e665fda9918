"""Losses are kept with the graphs that they came from: memory grows with every step."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

from hotlap.doctor.cure import places
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.script import last_name
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.levers.common.workload import Site
from hotlap.records.finding import Finding

NAME = "keeps_graph"


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """A loss that is added to something, or appended, without being detached; memory that grows."""
    sites = list(dict.fromkeys(_kept_losses(training)))
    slope = _bytes_per_step(training)
    if not sites and slope < limits.least_growth_bytes:
        return
    evidence = [f"the loss is kept with its graph at {places(sites)}"] if sites else []
    if slope >= limits.least_growth_bytes:
        evidence.append(f"the device's memory grows by {slope / 2**20:.3g} MiB a step")
    yield Finding(
        NAME,
        "warning",
        "memory is kept from step to step",
        tuple(evidence),
        None,
        f"{places(sites)}: loss.detach(), or loss.item() now and then"
        if sites
        else "look for what keeps tensors with their graphs: lists of losses or outputs",
    )


def _kept_losses(training: Training) -> Iterator[Site]:
    nodes = list(training.script.in_steps())
    losses = {
        node.func.value.id
        for _, node in nodes
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "backward"
        and isinstance(node.func.value, ast.Name)
    }
    for file, node in nodes:
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            if node.target.id not in losses and _is_attached(node.value, losses):
                yield file.site(node)
        elif (
            isinstance(node, ast.Call)
            and last_name(node.func) == "append"
            and any(_is_attached(argument, losses) for argument in node.args)
        ):
            yield file.site(node)


def _is_attached(value: ast.expr, losses: set[str]) -> bool:
    """The loss itself, or arithmetic with it: what a function makes of it is not looked into."""
    if isinstance(value, ast.Name):
        return value.id in losses
    if isinstance(value, ast.BinOp):
        return _is_attached(value.left, losses) or _is_attached(value.right, losses)
    return False


def _bytes_per_step(training: Training) -> float:
    """The growth that no step has taken back: 0 where memory ever shrank."""
    memory = training.habits.facts.get("memory") or []
    if len(memory) < 8 or any(after < before for before, after in itertools.pairwise(memory)):
        return 0.0
    return float(memory[-1] - memory[0]) / (len(memory) - 1)


RULE = training_rule(NAME, check)
