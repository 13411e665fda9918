"""Time by class and by operator, and the types that matrix products were computed in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from hotlap.chronometer.profile.classes import operator_class, uses_tensor_cores
from hotlap.chronometer.profile.costs import Cost, cost_of, dtype_of
from hotlap.chronometer.profile.lines import Lines
from hotlap.chronometer.profile.operators import Operator
from hotlap.chronometer.profile.work import Window, Work
from hotlap.records.profile import CLASSES, ClassTime, KernelClass, TopOp

N_TOP = 15
MATRIX_KINDS = ("matmul", "conv", "attention")
STREAMED = ("elementwise", "norm", "copy")
"""Classes that memory limits, whatever is known of their bytes."""
LEAST_KNOWN = 0.5
"""Of a class's time, in operators whose cost is known, for a rate of the class. The cost of fused
updates is not: their inputs are lists."""


@dataclass(frozen=True, slots=True)
class Roof:
    """The ceilings that shares of a roofline are against; None where one is unknown."""

    flops_per_s: float | None
    """For products of the type that takes the most time."""
    bytes_per_s: float | None
    source: str
    others: Mapping[str, float | None] = field(default_factory=dict)
    """FLOPs a second for products of the other types that were seen."""


@dataclass(slots=True)
class _Known:
    """Of a class: what its operators cost whose cost is known, and the time that they took."""

    flops: float = 0.0
    bytes: float = 0.0
    us: float = 0.0
    by_dtype: dict[str, float] = field(default_factory=dict)
    """FLOPs, by the type that they were computed in."""


def time_by_class(window: Window, roof: Roof | None) -> tuple[ClassTime, ...]:
    """Seconds, calls, FLOPs and bytes a step of each class, those first that take the most."""
    us: dict[KernelClass, float] = defaultdict(float)
    calls: dict[KernelClass, int] = defaultdict(int)
    for work in window.works:
        us[work.kind] += work.us
        calls[work.kind] += 1
    known = _known_costs(window)
    total = sum(us.values())
    rows = [
        _class_time(kind, us[kind], calls[kind], known[kind], window.n_steps, total, roof)
        for kind in CLASSES
        if us[kind]
    ]
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _known_costs(window: Window) -> dict[KernelClass, _Known]:
    """Of operators that had work done: one that only passes its input on has moved nothing."""
    found: dict[KernelClass, _Known] = defaultdict(_Known)
    counted: set[int] = set()
    for work in window.works:
        operator, cost = _costed(work)
        if operator is None or cost is None or operator.kind != work.kind:
            continue
        known = found[work.kind]
        known.us += work.us
        if id(operator) not in counted:
            counted.add(id(operator))
            known.flops += cost.flops
            known.bytes += cost.bytes
            dtype = computed_in(work) or ""
            known.by_dtype[dtype] = known.by_dtype.get(dtype, 0.0) + cost.flops
    return found


def _costed(work: Work) -> tuple[Operator | None, Cost | None]:
    """The operator that some work belongs to and whose cost is known."""
    for one in work.operator.ancestors() if work.operator else ():
        cost = cost_of(one)
        if cost is not None:
            return one, cost
    return None, None


def _class_time(
    kind: KernelClass,
    us: float,
    calls: int,
    known: _Known,
    n_steps: int,
    total_us: float,
    roof: Roof | None,
) -> ClassTime:
    flops, moved = known.flops / n_steps or None, known.bytes / n_steps or None
    # A rate of the lesser part of a class would say little of the class.
    known_s = known.us / 1e6 / n_steps if known.us >= LEAST_KNOWN * us else 0.0
    share, bound = _roofline(known, n_steps, known_s, roof)
    if bound is None and kind in STREAMED and roof is not None:
        bound = "memory"
    return ClassTime(
        name=kind,
        seconds=us / 1e6 / n_steps,
        share=us / total_us if total_us else 0.0,
        calls=calls / n_steps,
        flops=flops,
        bytes=moved,
        intensity=flops / moved if flops and moved else None,
        flops_per_s=flops / known_s if flops and known_s else None,
        bytes_per_s=moved / known_s if moved and known_s else None,
        roofline=share,
        bound=bound,
    )


def _roofline(
    known: _Known, n_steps: int, seconds: float, roof: Roof | None
) -> tuple[float | None, Literal["compute", "memory"] | None]:
    """The share of the time that the ceilings would take, and which of them takes longer."""
    if roof is None or roof.bytes_per_s is None or not known.bytes or not seconds:
        return None, None
    memory_s = known.bytes / n_steps / roof.bytes_per_s
    rates = {dtype: roof.others.get(dtype, roof.flops_per_s) for dtype in known.by_dtype}
    if not known.flops or not all(rates.values()):
        return memory_s / seconds, "memory"
    compute_s = sum(known.by_dtype[one] / rate for one, rate in rates.items() if rate) / n_steps
    if compute_s > memory_s:
        return compute_s / seconds, "compute"
    return memory_s / seconds, "memory"


def top_works(window: Window, lines: Lines | None) -> tuple[TopOp, ...]:
    """The kernels or operators that take the most time, and where they come from."""
    groups: dict[tuple[str, str, KernelClass], list[Work]] = defaultdict(list)
    for work in window.works:
        groups[work.name, work.operator.name if work.operator else "", work.kind].append(work)
    total = sum(work.us for work in window.works)
    rows = []
    for (name, operator, kind), works in groups.items():
        us = sum(work.us for work in works)
        rows.append((us, name, operator, kind, len(works)))
    rows.sort(key=lambda row: (-row[0], row[1]))
    return tuple(
        TopOp(
            name=name,
            operator=operator,
            kind=kind,
            seconds=us / 1e6 / window.n_steps,
            share=us / total if total else 0.0,
            calls=n / window.n_steps,
            sites=lines.sites_of_work(name, operator) if lines else (),
        )
        for us, name, operator, kind, n in rows[:N_TOP]
        if us
    )


def matmul_dtypes(works: Sequence[Work], n_steps: int) -> dict[str, float]:
    """Seconds a step of products and convolutions, by the type they were computed in."""
    found: dict[str, float] = defaultdict(float)
    for work in works:
        if work.kind in ("matmul", "conv") and not _is_wrapper(work):
            dtype = computed_in(work)
            if dtype is not None:
                found[dtype] += work.us / 1e6 / n_steps
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _is_wrapper(work: Work) -> bool:
    """On a CPU: an operator that has the product done below it, after casting its inputs."""
    one = work.operator
    return (
        work.event.category == "cpu_op"
        and one is not None
        and (one.is_around or operator_class(one.name) not in ("matmul", "conv"))
    )


def computed_in(work: Work) -> str | None:
    """The type of a product: of fp32 on a device the kernel's name says whether it is TF32."""
    operators = work.operator.ancestors() if work.operator else ()
    dtype = next((found for one in operators if (found := dtype_of(one))), None)
    if dtype == "float32" and work.event.category == "kernel" and uses_tensor_cores(work.name):
        return "tf32"
    return dtype


def tensor_core_share(window: Window) -> float | None:
    """Of the time of the kernels that could use tensor cores; None on a CPU."""
    if not window.is_device:
        return None
    matrix = [work for work in window.works if work.kind in MATRIX_KINDS]
    total = sum(work.us for work in matrix)
    if not total:
        return None
    return sum(work.us for work in matrix if uses_tensor_cores(work.name)) / total
