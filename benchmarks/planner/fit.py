"""Fit the calibration: few numbers, each with a meaning and with what is known of it beforehand.

The aim is the mean of |log(predicted / measured)|, each section weighted by the root of its number
of rows, plus a weak pull towards what is known beforehand: it decides where the data say nothing.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from cases import Case

from hotlap.planner.calibration import Calibration
from hotlap.planner.step import step_time
from hotlap.planner.work import StepWork, work_of


@dataclass(frozen=True)
class Prior:
    """What is known before the data: a value and how far off it may be, in logarithm."""

    value: float
    spread: float
    why: str


PRIORS: dict[str, Prior] = {
    "product_reach.ampere": Prior(0.80, 0.10, "cuBLAS on an A100: 250 of 312 TFLOP/s"),
    "product_reach.hopper": Prior(0.65, 0.10, "under its power limit an H100 clocks lower"),
    "attention_reach.ampere": Prior(0.33, 0.30, "flash attention's first version, causal"),
    "attention_reach.hopper": Prior(0.20, 0.30, "the same kernels, not made for Hopper"),
    "stream_reach": Prior(0.80, 0.10, "a copy reaches 0.85 to 0.9 of the bandwidth"),
    "link_reach": Prior(0.80, 0.07, "NCCL's bus bandwidth on an A100's NVSwitch: 235 of 300 GB/s"),
    "net_reach": Prior(0.70, 0.20, "NCCL over several adapters"),
    "link_latency_s": Prior(6e-6, 0.30, "a step of a ring over NVLink"),
    "net_latency_s": Prior(8e-6, 0.30, "a step of a ring over InfiniBand"),
    "contention": Prior(0.20, 0.30, "NCCL's kernels hold some of the multiprocessors"),
    "kernel_s": Prior(38e-6, 0.20, "a small perceptron on one H200: 1.34 ms, 25 launches, a loop"),
    "step_s": Prior(4e-4, 0.50, "the rest of these 1.34 ms"),
}
PULL = 0.003
"""Weight of what is known beforehand."""
N_ITERATIONS = 350
SHARE_OF_LARGE = 0.15
"""Of the rows of a section of more than 500 that a fit looks at; it is tested on all of them."""


def calibration(logs: Sequence[float]) -> Calibration:
    """From the logarithms of the numbers, in the order of PRIORS."""
    plain: dict[str, float] = {}
    nested: dict[str, dict[str, float]] = {}
    for name, log in zip(PRIORS, logs, strict=True):
        whole, _, generation = name.partition(".")
        value = float(math.exp(log))
        if generation:
            nested.setdefault(whole, {})[generation] = value
        else:
            plain[whole] = value
    return Calibration(**plain, **nested)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Sample:
    """A case and its work, which does not depend on the calibration."""

    case: Case
    work: StepWork

    def log_error(self, by: Calibration) -> float:
        """Of the predicted time."""
        return math.log(step_time(self.work, by).total / self.case.step_s)


def sample(case: Case) -> Sample:
    """Count a case's work."""
    return Sample(case, work_of(case.model, case.gpus, case.training, case.layout))


def fit(samples: Sequence[Sample], left_out: Collection[str]) -> Calibration:
    """On all sections but those left out."""
    seen = _thinned([one for one in samples if one.case.section not in left_out])
    counts = Counter(one.case.section for one in seen)
    weights = [1 / math.sqrt(counts[one.case.section]) for one in seen]
    centre = np.log([prior.value for prior in PRIORS.values()])
    spread = np.array([prior.spread for prior in PRIORS.values()])

    def cost(logs: np.ndarray) -> float:
        by = calibration(logs)
        errors = sum(w * abs(one.log_error(by)) for w, one in zip(weights, seen, strict=True))
        pull = float((((logs - centre) / spread) ** 2).mean())
        return errors / sum(weights) + PULL * pull

    # A second simplex around what the first one found: the first may have grown too flat to move.
    return calibration(_descend(cost, _descend(cost, centre)))


def _thinned(samples: Sequence[Sample]) -> list[Sample]:
    counts = Counter(one.case.section for one in samples)
    draw = random.Random(0)
    return [
        one for one in samples
        if counts[one.case.section] <= 500 or draw.random() < SHARE_OF_LARGE
    ]  # fmt: skip


def _descend(cost: Callable[[np.ndarray], float], start: np.ndarray) -> np.ndarray:
    """Nelder and Mead's simplex: it needs no gradient, and the cost has kinks."""
    n = len(start)
    points = [start, *(start + 0.15 * np.eye(n)[i] for i in range(n))]
    costs = [cost(point) for point in points]
    for _ in range(N_ITERATIONS):
        order = np.argsort(costs)
        points, costs = [points[i] for i in order], [costs[i] for i in order]
        centre = np.mean(points[:-1], axis=0)
        away = centre + (centre - points[-1])
        found = cost(away)
        if found < costs[0]:
            further = centre + 2 * (centre - points[-1])
            reached = cost(further)
            points[-1], costs[-1] = (further, reached) if reached < found else (away, found)
        elif found < costs[-2]:
            points[-1], costs[-1] = away, found
        else:
            nearer = centre + 0.5 * (points[-1] - centre)
            found = cost(nearer)
            if found < costs[-1]:
                points[-1], costs[-1] = nearer, found
            else:
                points = [points[0], *(points[0] + 0.5 * (p - points[0]) for p in points[1:])]
                costs = [costs[0], *(cost(point) for point in points[1:])]
    return points[int(np.argmin(costs))]
