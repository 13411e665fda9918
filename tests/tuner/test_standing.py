"""What a climb may stand on: only what was judged, and what the ladder shows is what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from simulated import LOSSES, HostAndDevice, World, climb, lever

from hotlap.errors import UsageError
from hotlap.records.ladder import Trial
from hotlap.tuner.bench import Bench, rate
from hotlap.tuner.climb import Climb
from hotlap.tuner.objective import MEMORY

A, B = lever("a"), lever("b")


def kept(one: Climb) -> dict[str, str]:
    return {rung.lever: rung.value for rung in one.rungs if rung.kept}


def test_harm_does_not_hide_behind_a_lever_that_changes_the_maths() -> None:
    def losses(settings: Mapping[str, str]) -> tuple[float, ...]:
        return tuple(x * (1.08 if "harm" in settings else 1.0) for x in LOSSES)

    maths, harm = lever("maths", changes="maths"), lever("harm")
    one = climb(World({"maths": 1.5, "harm": 1.5}, losses=losses), [maths, harm])
    assert one.best == {"maths": "on"}
    assert [rung.state for rung in one.rungs if rung.lever == "harm"] == ["different"]


@dataclass
class AloneOrTogether(World):
    """B is as fast without A; what else is true of B alone?"""

    of_b_alone: Mapping[str, Any] = field(default_factory=dict)

    def make(self, settings: Mapping[str, str], *numbers: Any) -> Trial:
        """One trial."""
        speedup = {"": 1.0, "a": 1.3, "ab": 2.0, "b": 2.0}["".join(sorted(settings))]
        self.speedups = {next(iter(settings), ""): speedup}
        trial = super().make(settings or {"": ""}, *numbers)
        trial = replace(trial, levers=dict(settings), done=dict.fromkeys(settings, ("x",)))
        return replace(trial, **self.of_b_alone) if set(settings) == {"b"} else trial


def test_a_lever_that_is_not_missed_goes() -> None:
    assert climb(AloneOrTogether({}), [A, B]).best == {"b": "on"}


@pytest.mark.parametrize(
    ("of_b_alone", "state"),
    [
        ({"losses": tuple(1.3 * x for x in LOSSES)}, "different"),
        ({"host_peak_bytes": 12 << 30}, "oom"),
    ],
)
def test_what_is_left_without_a_lever_is_judged_before_it_is_the_best(
    of_b_alone: dict[str, Any], state: str
) -> None:
    world = AloneOrTogether({}, of_b_alone=of_b_alone)
    one = climb(world, [A, B], memory_limit_bytes=2 << 30)
    assert one.best == kept(one) == {"a": "on", "b": "on"}
    (rung,) = (rung for rung in one.rungs if rung.lever == "a" and rung.kept)
    assert f"without it: {state}" in rung.reason


def test_what_was_replaced_on_the_way_is_not_shown_as_kept() -> None:
    """C takes the place of G, gains nothing by itself, and is kept together with H."""
    g, c, h = lever("g"), lever("c", instead_of=("g",)), lever("h")
    world = HostAndDevice(
        {},
        device_s=0.06,
        host_s=0.1,
        on_host={"g": 1.5, "c": 3.0},
        on_device={"c": 0.9, "h": 2.0},
    )
    one = climb(world, [g, c, h], promise=0.2)
    assert one.best == kept(one) == {"c": "on", "h": "on"}


def test_rates_have_the_interval_of_rates_whatever_is_to_be_bettered() -> None:
    """Memory is the same each time, and says nothing of how steps differ from start to start."""
    world = World({}, spread=0.1, seed=1)
    bench = Bench(world.make, MEMORY.score, 1e6, 4.0)
    one = Climb(bench=bench, levers={}, needed_values=lambda needed: None, objective=MEMORY)
    one.measure_baseline()
    rates = [rate(trial) or 0.0 for trial in bench.trials[()]]
    measured = one.rate_of({})
    assert measured.low is not None
    assert measured.high is not None
    assert measured.low < min(rates) < max(rates) < measured.high


def test_the_ratio_is_of_the_machine_as_it_is_at_the_end() -> None:
    """It gets a quarter faster once the lever was kept."""

    class Faster(World):
        def make(self, settings, *numbers):  # type: ignore[no-untyped-def]
            trial = super().make(settings, *numbers)
            factor = 1.25 if self.n_made > 6 else 1.0
            return replace(trial, step_s=tuple(one / factor for one in trial.step_s))

    others = [lever(f"n{i}") for i in range(6)]
    claimed = [climb(Faster({"a": 1.5}, seed=seed), [A, *others]).result for seed in range(10)]
    assert sum(one.value for one in claimed) / 10 == pytest.approx(1.5, rel=0.02)


def test_a_training_with_fewer_losses_than_the_guard_compares_is_not_tuned() -> None:
    class Short(World):
        def make(self, settings, *numbers):  # type: ignore[no-untyped-def]
            return replace(super().make(settings, *numbers), n_steps=29, is_cut=False)

    with pytest.raises(UsageError, match="it ends after 29 steps, 30 are needed"):
        climb(Short({}), [A])
