"""The same training on fewer and more GPUs: where more of them stop paying.

The batch stays: twice the GPUs have half the samples each. Tensor, context and pipeline parallelism
stay too; how data are cut, micro-batches and recomputation are chosen anew at each number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hotlap.planner.cluster import MOST_GPUS
from hotlap.planner.layout import Layout
from hotlap.planner.predict import Prediction, interval_of
from hotlap.planner.search import Space, search_like
from hotlap.records.plan import ScalingPoint, Value

EFFICIENT = 0.8
"""Of the best samples a GPU: below it GPUs are spent, not used."""
STEPS_EACH_WAY = 4


def scaling_curve(
    space: Space, chosen: Prediction, total_samples: float | None, goodput: float
) -> tuple[ScalingPoint, ...]:
    """Points by powers of two around the plan's number of GPUs; those that fit alone."""
    found: list[tuple[int, Prediction]] = []
    for n in _counts(space, chosen.layout):
        one = chosen
        if n != space.gpus.n:
            best = search_like(replace(space, gpus=replace(space.gpus, n=n)), chosen.layout)
            if best is None:
                continue
            one = best
        found.append((n, one))
    most = max(_rate(one) / n for n, one in found)
    return tuple(
        _point(n, one, interval_of(one, space.by), most, total_samples, goodput) for n, one in found
    )


def _counts(space: Space, layout: Layout) -> Iterator[int]:
    least = layout.world_size // layout.n_data
    gpus = space.gpus
    for power in range(-STEPS_EACH_WAY, STEPS_EACH_WAY + 1):
        count = gpus.n * 2**power
        if count != int(count) or not least <= count <= MOST_GPUS or int(count) % least:
            continue
        is_one_node = count <= gpus.per_node
        if is_one_node or (count % gpus.per_node == 0 and gpus.interconnect_gb_per_s):
            yield int(count)


def _rate(one: Prediction) -> float:
    return one.training.batch / one.step_s


def _point(
    n: int,
    one: Prediction,
    step: Value,
    most: float,
    total_samples: float | None,
    goodput: float,
) -> ScalingPoint:
    efficiency = _rate(one) / n / most
    seconds = total_samples / _rate(one) / goodput if total_samples else None
    return ScalingPoint(
        n,
        str(one.layout),
        _rate(one),
        one.training.batch / step.high,
        one.training.batch / step.low,
        efficiency,
        seconds * n / 3600 if seconds else None,
        seconds / 86400 if seconds else None,
        efficiency >= EFFICIENT,
    )
