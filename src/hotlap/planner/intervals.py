"""How sure a predicted time is: every number of the calibration is unsure by so much.

Each is moved up and down by itself, the step is predicted anew, and the changes add like errors do.
So a number counts only where it decides: the host's speed where the GPU waits for it, the network's
where nothing hides it. How unsure each is comes from published measurements and predictions fitted
without them (`benchmarks/planner`). An interval holds nine of ten measurements.
"""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, sqrt
from typing import Any

from hotlap.planner.calibration import Calibration
from hotlap.planner.step import step_time
from hotlap.planner.work import StepWork
from hotlap.records.plan import Value

UNSURE = {
    "product_reach": 0.10,
    "fp32_reach": 0.10,
    "attention_reach": 0.40,  # kernels of one generation of GPUs differ by more than 2
    "convolution_reach": 0.25,
    "stream_reach": 0.15,
    "link_reach": 0.15,
    "net_reach": 0.30,
    "link_latency_s": 0.50,
    "net_latency_s": 0.50,
    "contention": 0.50,
    "kernel_s": 0.25,
    "host_link_reach": 0.50,
    "step_s": 1.00,
}
"""Half of a 90 % interval of each number, relative."""
TOGETHER = {
    "product_reach": ("other_reach", "other_reach_of"),
    "attention_reach": ("other_attention",),
    "stream_reach": ("stream_reach_of",),
    "kernel_s": ("kernel_s_of",),
}
"""The same number for other generations of GPUs: they move together."""
WHOLE = 0.14
"""The same of what no number stands for: a machine or a program unlike others of its kind."""
SEVERAL_NODES = 0.10
"""More, over several nodes: sections of measurements that were left out whole are off by 5.8 % (the
root of the mean square of their biases), which is another program on another network."""
UNMEASURED = 0.20
"""More, for a generation of GPUs that no measurement was of."""
CALIBRATED = 0.35
"""Of all that is left, where a Run of the same model on the same GPUs set the pace."""
OF_THE_HOST = ("kernel_s", "step_s")
"""Numbers of the host; the others are the GPU's, and the links' that it waits for."""
MEMORY = 0.06
"""Of memory."""


def step_interval(work: StepWork, by: Calibration) -> Value:
    """Seconds of a step with its 90 % interval.

    A Run that set the pace of the host makes the host's numbers surer, and no others.
    """
    time = step_time(work, by)
    value = time.total
    gpu, host = (CALIBRATED if pace != 1.0 else 1.0 for pace in (by.gpu_pace, by.host_pace))
    both = [WHOLE]
    if work.n_nodes > 1:
        both.append(SEVERAL_NODES)
    if work.generation not in by.product_reach:
        both.append(UNMEASURED)
    whole = host if time.host > value / 2 else gpu
    ups = [whole * log(1 + one) for one in both]
    downs = list(ups)
    for name, unsure in UNSURE.items():
        share = host if name in OF_THE_HOST else gpu
        changes = [log(step_time(work, _moved(by, name, f)).total / value) for f in _both(unsure)]
        ups.append(share * max(0.0, *changes))
        downs.append(share * max(0.0, *(-change for change in changes)))
    up, down = (sqrt(sum(one**2 for one in some)) for some in (ups, downs))
    return Value(value, value * exp(-down), value * exp(up))


def _both(unsure: float) -> tuple[float, float]:
    return 1 + unsure, 1 / (1 + unsure)


def _moved(by: Calibration, name: str, factor: float) -> Calibration:
    names = (name, *TOGETHER.get(name, ()))
    moved: dict[str, Any] = {one: _times(getattr(by, one), factor) for one in names}
    return replace(by, **moved)


def _times(value: float | dict[str, float], factor: float) -> float | dict[str, float]:
    if isinstance(value, dict):
        return {key: one * factor for key, one in value.items()}
    return value * factor


def around(value: float, half: float) -> Value:
    """An interval that is symmetric in ratios: as likely so much more as so much less."""
    return Value(value, value / (1 + half), value * (1 + half))
