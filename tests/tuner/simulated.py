"""A bench whose trials are drawn instead of run: the climb's decisions at the speed of thought."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hotlap.levers.common.lever import Decision, Lever
from hotlap.records.ladder import State, Trial
from hotlap.tuner.bench import Bench, rate
from hotlap.tuner.climb import Climb, Order
from hotlap.tuner.order import Candidate

LOSSES = tuple(2.0 * 0.97**i + 0.05 * (i % 3) for i in range(42))


def lever(name: str, **fields: object) -> Lever:
    """A lever that is only a name and a claim."""
    described: dict[str, object] = {
        "summary": name,
        "changes": "nothing",
        "risk": "safe",
        "phases": ("forward",),
        "saves": lambda workload: 0.1,
        "values": lambda workload: ("on",),
        "applies": lambda workload: Decision(True, "always"),
        "edit": lambda value, workload: (),
    }
    return Lever(name=name, **{**described, **fields})  # type: ignore[arg-type]


@dataclass
class World:
    """What is true of the levers: their speed-ups, the machine's noise and drift."""

    speedups: Mapping[str, float]
    spread: float = 0.01
    drift_per_trial: float = 0.0
    states: Mapping[frozenset[str], State] = field(default_factory=dict)
    losses: Callable[[Mapping[str, str]], tuple[float, ...]] = lambda settings: LOSSES
    seed: int = 0
    n_made: int = 0
    clock_s: float = 0.0

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)

    def make(
        self,
        settings: Mapping[str, str],
        seed: int,
        n_steps: int,
        n_warmup: int,
        limit_s: float,
    ) -> Trial:
        """One trial."""
        self.n_made += 1
        state = self.states.get(frozenset(settings), "ok")
        step_s = 0.1 * (1 + self.drift_per_trial) ** self.n_made
        for name in settings:
            step_s /= self.speedups.get(name, 1.0)
        step_s *= 1 + self.draw.gauss(0, self.spread)
        steps = tuple(step_s * (1 + self.draw.gauss(0, 0.01)) for _ in range(n_steps))
        return Trial(
            levers=dict(settings),
            seed=seed,
            state=state,
            reason="" if state == "ok" else f"it is {state}",
            last_lines=() if state == "ok" else ("the last words",),
            total_s=5.0,
            n_steps=42,
            is_cut=True,
            step_s=steps if state == "ok" else (),
            samples_per_s=16 / step_s,
            samples_per_step=16.0,
            phases_s={"forward": 0.4 * step_s, "backward": 0.6 * step_s},
            waits_for_host=False,
            losses=self.losses(settings),
            device_peak_bytes=None,
            host_peak_bytes=1 << 30,
            energy_per_sample_j=None,
            mean_w=None,
            fingerprints=(),
            done=dict.fromkeys(settings, ("changed",)),
            failed={},
            run="",
        )


@dataclass
class HostAndDevice(World):
    """A GPU and its host, side by side: the step takes as long as the slower of them."""

    device_s: float = 0.062
    host_s: float = 0.0615
    on_device: Mapping[str, float] = field(default_factory=dict)
    on_host: Mapping[str, float] = field(default_factory=dict)
    """Levers and how many times as fast they make each of them."""

    def make(self, settings: Mapping[str, str], *numbers: Any) -> Trial:
        """One trial."""
        device_s, host_s = self.device_s, self.host_s
        for name in settings:
            device_s /= self.on_device.get(name, 1.0)
            host_s /= self.on_host.get(name, 1.0)
        self.speedups = {next(iter(settings), ""): 0.1 / max(device_s, host_s)}
        trial = super().make(settings or {"": ""}, *numbers)
        return replace(trial, levers=dict(settings), waits_for_host=host_s > device_s)


def in_turn(*levers: Lever, promise: float = 0.0) -> Order:
    """One after another, whatever was kept."""
    return lambda kept, trial: [Candidate(one, "on", promise=promise) for one in levers]


def climb(
    world: World,
    levers: list[Lever],
    budget_s: float = 1e6,
    promise: float = 0.0,
    **fields: object,
) -> Climb:
    """A whole climb in this world."""
    bench = Bench(world.make, rate, budget_s, 4.0)
    one = Climb(
        bench=bench, levers={x.name: x for x in levers}, needed_values=lambda needed: "on", **fields
    )  # type: ignore[arg-type]
    one.measure_baseline()
    one.climb(in_turn(*levers, promise=promise))
    return one
