"""The climb's decisions, in worlds whose truth is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from simulated import LOSSES, HostAndDevice, World, climb, in_turn, lever

from hotlap.errors import UsageError
from hotlap.levers.common.lever import Lever
from hotlap.records.ladder import Rung, Trial
from hotlap.tuner.bench import Bench, rate
from hotlap.tuner.climb import Climb
from hotlap.tuner.objective import ENERGY, MEMORY, Objective
from hotlap.tuner.order import Candidate

A, B, C = lever("a"), lever("b"), lever("c")


def rung_of(one: Climb, name: str) -> Rung:
    return next(rung for rung in reversed(one.rungs) if rung.lever == name)


def test_what_pays_is_kept_and_what_does_not_is_refused() -> None:
    one = climb(World({"a": 1.5, "b": 0.8, "c": 1.2}), [A, B, C])
    assert one.best == {"a": "on", "c": "on"}
    assert rung_of(one, "b").reason.endswith("slower")
    assert rung_of(one, "a").contribution == pytest.approx(1.5, rel=0.08)
    assert rung_of(one, "c").contribution == pytest.approx(1.2, rel=0.08)


def test_the_claimed_ratio_is_the_true_one_within_its_interval() -> None:
    inside = 0
    for seed in range(40):
        one = climb(World({"a": 1.5, "b": 1.3}, seed=seed), [A, B])
        low, high = one.result.low, one.result.high
        inside += low <= 1.95 <= high
    assert inside >= 36


def test_levers_without_effect_are_almost_never_kept() -> None:
    kept = sum(len(climb(World({}, seed=seed), [A, B, C]).best) for seed in range(40))
    assert kept <= 6  # of 120 at 2.5 % each


def test_a_noisy_machine_does_not_hide_a_lever_that_promises_much() -> None:
    """One start differs from the next by a tenth; the lever brings a quarter."""
    found, given_up = (
        sum("a" in climb(World({"a": 1.25}, 0.1, seed=s), [A], promise=p).best for s in range(200))
        for p in (0.25, 0.0)
    )
    assert found >= 120
    assert found > given_up


def test_further_looks_at_what_promises_much_keep_hardly_more_that_does_nothing() -> None:
    worlds = [World({}, 0.1, seed=seed) for seed in range(40)]
    kept = sum(len(climb(world, [A, B, C], promise=0.25).best) for world in worlds)
    assert kept <= 9  # of 120


@pytest.mark.parametrize("promise", [0.25, 0.05])
def test_what_came_near_is_tried_once_more_at_the_end(promise: float) -> None:
    worlds = [World({"a": 1.1}, 0.03, seed=s) for s in range(60)]
    climbs = [climb(world, [A, B], promise=promise) for world in worlds]
    assert sum("a" in one.best for one in climbs) >= 50  # and 43 without that
    assert sum("b" in one.best for one in climbs) <= 4  # which does nothing
    tries = [sum(rung.lever == name for rung in one.rungs) for one in climbs for name in "ab"]
    assert set(tries) == {1, 2}
    for one in climbs:
        again = ["tried again" in rung.reason for rung in one.rungs if rung.lever == "a"]
        assert again in ([False], [False, True])


def test_what_another_lever_hid_is_tried_once_more_at_the_end() -> None:
    """Half the work gains nothing while most of the time goes into what only B takes away."""

    class Hiding(World):
        def make(self, settings, *numbers):  # type: ignore[no-untyped-def]
            self.speedups = {"a": 1.8 if "b" in settings else 1.0, "b": 1.5}
            return super().make(settings, *numbers)

    one = climb(Hiding({}), [A, B], promise=0.25)
    assert one.best == {"a": "on", "b": "on"}
    assert [rung.kept for rung in one.rungs if rung.lever == "a"] == [False, True]
    # With little promise it is left at that.
    assert climb(Hiding({}), [A, B], promise=0.05).best == {"b": "on"}


@pytest.mark.parametrize(("promise", "kept"), [(0.25, {"a": "on"}), (0.05, {})])
def test_a_machine_that_has_slowed_down_does_not_hide_a_lever(
    promise: float, kept: dict[str, str]
) -> None:
    """From the third trial on, everything takes half as long again: A alone seems to be slower."""

    class Slowed(World):
        def make(self, settings, *numbers):  # type: ignore[no-untyped-def]
            self.drift_per_trial = 0.0 if self.n_made < 2 else 1.5 ** (1 / (self.n_made + 1)) - 1
            return super().make(settings, *numbers)

    one = climb(Slowed({"a": 1.3}), [A, B], promise=promise)
    assert one.best == kept
    first = next(rung for rung in one.rungs if rung.lever == "a")
    assert first.reason.endswith("slower")


def test_a_result_that_noise_hides_is_measured_again_while_there_is_time() -> None:
    """One start differs from the next by a tenth; the lever brings a quarter and is seen to."""
    ends = [climb(World({"a": 1.25}, 0.1, seed=s), [A], promise=0.25) for s in range(60)]
    found = [one for one in ends if one.best]
    given_up = [one for one in ends if "all together" in one.rungs[-1].reason]
    assert len(found) > 10 * len(given_up)
    assert any(len(one.bench.trials[()]) > 6 for one in found)
    assert all(one.result.low > 1.0 for one in found)


def test_what_died_is_not_tried_again_at_the_end() -> None:
    world = World({"b": 0.9}, states={frozenset({"a"}): "crashed"})
    one = climb(world, [A, B], promise=0.25)
    assert [rung.lever for rung in one.rungs if rung.state == "crashed"] == ["a"]


@dataclass
class FailsAgain(World):
    """Settings with lever C end well the first time and run out of memory from then on."""

    n_with_c: int = 0

    def make(self, settings: Mapping[str, str], *numbers: Any) -> Trial:
        trial = super().make(settings, *numbers)
        self.n_with_c += "c" in settings
        if "c" not in settings or self.n_with_c == 1:
            return trial
        return replace(trial, state="oom", reason="it ran out of memory", step_s=())


@pytest.mark.parametrize("c", [1.2, 1.5, 4.0])  # seen in a second look, at the end, at the end
@pytest.mark.parametrize("levers", [[C], [A, C], [C, A], [A, C, B]])
def test_what_was_kept_and_fails_when_it_is_measured_again_falls(
    levers: list[Lever], c: float
) -> None:
    kept: list[Mapping[str, str]] = []
    world = FailsAgain({"a": 1.5, "b": 1.3, "c": c})
    one = climb(world, levers, on_kept=lambda settings: kept.append(dict(settings)))
    names = {lever.name for lever in levers} - {"c"}
    assert one.best == dict.fromkeys(names, "on")
    assert {rung.lever for rung in one.rungs if rung.kept} == names
    assert kept[-1] == one.best  # what hotlap.toml holds
    fallen = rung_of(one, "c")
    assert (fallen.state, fallen.kept, fallen.samples_per_s) == ("oom", False, None)
    assert "failed when it was measured again: it ran out of memory" in fallen.reason
    assert one.result.value == pytest.approx(
        {"": 1.0, "a": 1.5, "ab": 1.95}["".join(sorted(names))], rel=0.08
    )


def test_a_value_that_falls_makes_room_for_the_one_it_had_bettered() -> None:
    """Eight times the batch fitted once; four times it is fast as well, and fits."""

    class Batches(World):
        n_made_large = 0

        def make(self, settings, *numbers):  # type: ignore[no-untyped-def]
            factor = settings.get("batch", "x1")
            self.speedups = {"batch": {"x1": 1.0, "x4": 1.5, "x8": 1.8}[factor]}
            trial = super().make(settings, *numbers)
            self.n_made_large += factor == "x8"
            if factor != "x8" or self.n_made_large == 1:
                return trial
            return replace(trial, state="oom", reason="it ran out of memory", step_s=())

    batch = lever("batch")
    bench = Bench(Batches({}).make, rate, 1e6, 4.0)
    one = Climb(bench=bench, levers={"batch": batch}, needed_values=lambda needed: None)
    one.measure_baseline()
    one.climb(lambda kept, trial: [Candidate(batch, value) for value in ("x4", "x8")])
    assert one.best == {"batch": "x4"}
    (rung,) = (rung for rung in one.rungs if rung.kept)
    assert rung.value == "x4"
    assert "bettered" not in rung.reason
    assert rung.contribution == pytest.approx(1.5, rel=0.08)


def test_a_batch_is_kept_only_after_it_fitted_twice() -> None:
    """Three times as fast is beyond any drift, and no reason to believe that it fits."""

    class FitsOnce(World):
        def make(self, settings, *numbers):  # type: ignore[no-untyped-def]
            trial = super().make(settings, *numbers)
            made.extend(settings)
            if made.count("batch") < 2 or not settings:
                return trial
            return replace(trial, state="oom", reason="it ran out of memory", step_s=())

    made: list[str] = []
    kept: list[Mapping[str, str]] = []
    batch = lever("batch", values_go_on=True)
    one = Climb(
        bench=Bench(FitsOnce({"batch": 3.0}).make, rate, 1e6, 4.0),
        levers={"batch": batch},
        needed_values=lambda needed: None,
        on_kept=kept.append,
    )
    one.measure_baseline()
    one.climb(in_turn(batch))
    assert (one.best, kept) == ({}, [])
    assert rung_of(one, "batch").state == "oom"


@pytest.mark.parametrize("promise", [0.25, 0.05])
def test_what_failed_beside_a_lever_that_falls_is_tried_again(promise: float) -> None:
    """A is fast, and fits once; B fits where A is not. C is slower: then A is measured again."""

    class Tight(World):
        n_alone = 0

        def make(self, settings, *numbers):  # type: ignore[no-untyped-def]
            trial = super().make(settings, *numbers)
            self.n_alone += set(settings) == {"a"}
            fits = "b" not in settings and (set(settings) != {"a"} or self.n_alone == 1)
            if "a" not in settings or fits:
                return trial
            return replace(trial, state="oom", reason="it ran out of memory", step_s=())

    one = climb(Tight({"a": 3.0, "b": 1.5, "c": 0.9}), [A, B, C], promise=promise)
    assert one.best == {"b": "on"}
    assert one.reopened == set()


def test_a_passenger_that_the_others_were_compared_with_does_not_make_them_another_training() -> (
    None
):
    """W draws other random numbers, and is dropped in the end: then A is judged without it."""
    draws = lever("w", new_randomness=True)
    one = climb(World({"w": 1.5, "a": 1.5}), [draws, A])
    assert one.claim({"w": "on", "a": "on"}).new_randomness is False
    assert one.claim({"a": "on"}).new_randomness is True


def test_a_trial_that_does_not_tell_what_is_to_be_bettered_is_told_and_not_kept() -> None:
    class Short(World):
        def make(self, settings, *numbers):  # type: ignore[no-untyped-def]
            trial = super().make(settings, *numbers)
            return replace(trial, energy_per_sample_j=None if "a" in settings else 1.0)

    bench = Bench(Short({"a": 5.0}).make, ENERGY.score, 1e6, 4.0)
    one = Climb(
        bench=bench, levers={"a": A, "b": B}, needed_values=lambda needed: "on", objective=ENERGY
    )
    one.measure_baseline()
    one.climb(in_turn(A, B))
    assert one.best == {}
    assert rung_of(one, "a").reason == "its trial was too short to tell its energy"


def test_a_second_look_that_fails_leaves_no_figures() -> None:
    class FailsLater(World):
        def make(self, settings, *numbers):  # type: ignore[no-untyped-def]
            trial = super().make(settings, *numbers)
            if "a" not in settings or self.n_made < 5:
                return trial
            return replace(trial, state="crashed", reason="it crashed", last_lines=("its words",))

    one = climb(FailsLater({"a": 1.03}, 0.05, seed=1), [A], promise=0.25)
    assert one.best == {}
    fallen = rung_of(one, "a")
    assert (fallen.state, fallen.samples_per_s, fallen.last_lines) == (
        *("crashed", None),
        ("its words",),
    )


def test_drift_of_the_machine_is_not_taken_for_gain() -> None:
    """A machine that gets 2 % faster with every trial: a lever without effect looks like a gain."""
    kept = [climb(World({}, 0.005, -0.02, seed=s), [A, B, C]).best for s in range(20)]
    assert sum(map(len, kept)) <= 9  # without measuring the best again, all 60 would be


def test_a_gain_beyond_any_drift_needs_no_second_look() -> None:
    world = World({"a": 4.0, "b": 1.3})
    one = climb(world, [A, B])
    assert one.best == {"a": "on", "b": "on"}
    first_looks = one.bench.trials[()]
    assert len(first_looks) == 4  # twice at the start, twice at the end: none when a was tried
    assert len(one.bench.trials[(("a", "on"),)]) == 2  # and once more when b was


def test_a_passenger_is_dropped_when_it_is_left_out() -> None:
    """B pays only until A comes: what it claims then is not its own."""

    class Overlap(World):
        def make(self, settings, *numbers):  # type: ignore[no-untyped-def]
            speed = 1.3 if "b" in settings and "a" not in settings else 1.0
            self.speedups = {"a": 2.0, "b": speed}
            return super().make(settings, *numbers)

    one = climb(Overlap({}), [B, A])
    assert one.best == {"a": "on"}
    assert "passenger" in rung_of(one, "b").reason


def test_what_was_kept_last_is_not_measured_again_without_it() -> None:
    world = World({"a": 1.5, "b": 1.5})
    one = climb(world, [A, B])
    without_b = one.bench.trials[(("a", "on"),)]
    assert len(without_b) == 2  # when it was tried, and when b was tried on top of it
    assert rung_of(one, "b").contribution == pytest.approx(1.5, rel=0.08)
    assert rung_of(one, "a").contribution == pytest.approx(1.5, rel=0.08)


def test_noise_is_measured_when_the_first_lever_rounds_with_what_changes_nothing() -> None:
    rounding = lever("r", changes="rounding", bound=1e-2)
    one = climb(World({"a": 1.5, "r": 1.5}), [A, rounding])
    (noisy,) = [key for key in one.bench.trials if ("_noise", "0.01") in key]
    assert noisy == (("_noise", "0.01"), ("a", "on"))
    assert one.reference.noisy is not None
    assert climb(World({"a": 1.5}), [A]).reference.noisy is None


def test_the_order_is_asked_for_again_with_what_was_kept() -> None:
    """B is of use to a step with A alone: it is tried once A is kept."""
    asked = []

    def order(kept: Mapping[str, str], trial: Trial) -> list[Candidate]:
        asked.append((dict(kept), trial.levers))
        b = Candidate(B, "on") if "a" in kept else Candidate(B, "", "not yet")
        return [Candidate(C, "on"), Candidate(A, "on"), b]

    bench = Bench(World({"a": 1.5, "b": 1.3, "c": 0.5}).make, rate, 1e6, 4.0)
    one = Climb(bench=bench, levers={"a": A, "b": B, "c": C}, needed_values=lambda needed: "on")
    one.measure_baseline()
    one.try_all(order)
    assert [rung.lever for rung in one.rungs] == ["c", "a", "b"]
    assert one.best == {"a": "on", "b": "on"}
    assert all(kept == levers for kept, levers in asked)


@pytest.mark.parametrize(("promise", "tries_c"), [(0.05, False), (0.4, True)])
def test_time_is_left_to_prove_what_was_kept(promise: float, tries_c: bool) -> None:
    """Trials take 5 s, those with A 50 s: C would leave no time to take A and B away.

    What promises much is tried all the same.
    """

    class Slow(World):
        def make(self, settings, *numbers):  # type: ignore[no-untyped-def]
            total_s = 50.0 if "a" in settings else 5.0
            self.clock_s += total_s
            return replace(super().make(settings, *numbers), total_s=total_s)

    class Clocked(Bench):
        def time_left(self) -> float:
            return self.budget_s - world.clock_s

    world = Slow({"a": 1.5, "b": 1.5, "c": 1.5})
    levers = {"a": lever("a", cost=lambda value: 10.0), "b": B, "c": C}
    one = Climb(
        bench=Clocked(world.make, rate, 250.0, 4.0),
        levers=levers,
        needed_values=lambda needed: "on",
    )
    one.measure_baseline()
    one.climb(in_turn(B, levers["a"], C, promise=promise))
    assert ("c" in one.best) is tries_c
    assert {"a", "b"} <= set(one.best)
    assert (rung_of(one, "c").state == "not tried") is not tries_c
    assert bool(rung_of(one, "b").contribution) is not tries_c
    assert bool(one.notes) is tries_c  # what the others are worth is then said to be unknown
    assert world.clock_s <= 250.0


@pytest.mark.parametrize("state", ["oom", "crashed", "hung", "too short", "cut short", "diverged"])
def test_a_trial_that_ends_badly_is_a_state_and_the_climb_goes_on(state: str) -> None:
    world = World({"a": 2.0, "b": 1.5}, states={frozenset({"a"}): state})  # type: ignore[dict-item]
    one = climb(world, [A, B])
    assert one.best == {"b": "on"}
    first = one.rungs[0]
    assert (first.state, first.kept, first.last_lines) == (state, False, ("the last words",))
    assert one.is_complete is (state != "cut short")


def test_a_lever_that_needs_another_is_tried_together_with_it() -> None:
    bf16, isa = lever("bf16", needs=("isa",)), lever("isa")
    world = World({"bf16": 1.8}, states={frozenset({"bf16"}): "crashed"})
    one = climb(world, [bf16, isa])
    assert one.best == {"isa": "on", "bf16": "on"}
    assert one.rungs[0].state == "crashed"
    assert rung_of(one, "isa").kept
    assert any("together with isa" in rung.reason for rung in one.rungs)


def test_a_lever_that_changes_the_losses_is_never_kept() -> None:
    other = tuple(loss * 1.01 for loss in LOSSES)
    world = World({"a": 3.0}, losses=lambda settings: other if "a" in settings else LOSSES)
    one = climb(world, [A])
    assert one.best == {}
    assert rung_of(one, "a").state == "different"


def test_a_lever_that_did_nothing_is_not_credited() -> None:
    class Idle(World):
        def make(self, settings, *numbers):  # type: ignore[no-untyped-def]
            return replace(super().make(settings, *numbers), done={})

    assert rung_of(climb(Idle({"a": 2.0}), [A]), "a").state == "no effect"


def test_the_end_is_no_slower_than_the_baseline() -> None:
    for seed in range(10):
        one = climb(World({"a": 0.7, "b": 0.9}, 0.05, seed=seed), [A, B])
        assert one.result.value >= 1.0


def test_of_two_levers_that_pay_alone_and_hurt_together_one_is_kept() -> None:
    class Rivals(World):
        def make(self, settings, *numbers):  # type: ignore[no-untyped-def]
            self.speedups = {"a": 0.7} if {"a", "b"} <= settings.keys() else {"a": 1.4, "b": 1.4}
            return super().make(settings, *numbers)

    for seed in range(10):
        one = climb(Rivals({}, 0.03, seed=seed), [A, B])
        assert len(one.best) == 1
        assert one.result.low > 1.0


def test_a_budget_that_is_used_up_leaves_levers_untried_and_says_so() -> None:
    world = World({"a": 1.5, "b": 1.5})
    bench = Bench(world.make, rate, 0.001, 4.0)
    one = Climb(bench=bench, levers={"a": A, "b": B}, needed_values=lambda needed: "on")
    one.measure_baseline()
    one.try_all(in_turn(A, B))
    assert [rung.state for rung in one.rungs] == ["not tried", "not tried"]
    assert not one.is_complete


def test_a_command_that_does_not_run_is_one_sentence_with_its_last_lines() -> None:
    with pytest.raises(UsageError, match="cannot be tuned: it is crashed\n  the last words"):
        climb(World({}, states={frozenset(): "crashed"}), [A])
    with pytest.raises(UsageError, match="the budget is too short: it is cut short\n"):
        climb(World({}, states={frozenset(): "cut short"}), [A])


def test_a_climb_that_was_interrupted_goes_on_with_the_trials_on_file(tmp_path: Path) -> None:
    log = tmp_path / "trials.jsonl"

    def start(world: World) -> Climb:
        bench = Bench(world.make, rate, 1e6, 4.0, log=log)
        bench.load()
        one = Climb(bench=bench, levers={"a": A, "b": B}, needed_values=lambda needed: "on")
        one.measure_baseline()
        one.try_all(in_turn(A, B))
        return one

    whole = start(World({"a": 1.5, "b": 1.4}))
    lines = log.read_text().splitlines()
    log.write_text("\n".join(lines[:5]) + "\n" + lines[5][:100])  # killed while writing
    world = World({"a": 1.5, "b": 1.4})
    again = start(world)
    assert again.best == whole.best
    assert world.n_made <= len(lines) - 5 + 1


def test_harm_does_not_hide_behind_other_random_numbers() -> None:
    """With workers kept, losses are other ones; a lever on top is compared with theirs."""
    drawn_elsewhere = tuple(x + 0.2 * ((7 * i) % 5 - 2) for i, x in enumerate(LOSSES))

    def losses(settings: Mapping[str, str]) -> tuple[float, ...]:
        found = drawn_elsewhere if "w" in settings else LOSSES
        return tuple(x * 1.01 for x in found) if "harm" in settings else found

    levers = [lever("w", new_randomness=True), lever("harm"), A]
    one = climb(World({"w": 2.0, "harm": 2.0, "a": 1.5}, losses=losses), levers)
    assert one.best == {"w": "on", "a": "on"}
    assert rung_of(one, "w").loss_verdict.startswith("same curve")
    assert rung_of(one, "harm").state == "different"
    assert rung_of(one, "a").loss_verdict.startswith("bit for bit")


def test_noise_is_measured_again_where_random_numbers_are_drawn_elsewhere() -> None:
    rounding = [lever(name, changes="rounding", bound=1e-2) for name in ("r", "q")]
    elsewhere = lever("w", new_randomness=True)
    one = climb(World({"r": 1.5, "w": 1.5}), [rounding[0], elsewhere, rounding[1]])
    noisy = [dict(key) for key in one.bench.trials if ("_noise", "0.01") in key]
    assert noisy == [{"_noise": "0.01"}, {"_noise": "0.01", "r": "on", "w": "on"}]


def test_a_machine_that_is_not_steady_is_told() -> None:
    class Unsteady(World):
        def make(self, settings, *numbers):  # type: ignore[no-untyped-def]
            made = super().make(settings, *numbers)
            slower = 3.0 if self.n_made % 2 else 1.0
            return replace(made, step_s=tuple(slower * one for one in made.step_s))

    (note,) = climb(Unsteady({}), []).notes
    assert "not steady" in note
    assert climb(World({}), []).notes == []


def test_a_trial_that_meets_the_end_of_the_budget_leaves_time_for_the_proof() -> None:
    limits = []

    class Slow(World):
        def make(self, settings, *numbers):  # type: ignore[no-untyped-def]
            limits.append(numbers[-1])
            trial = super().make(settings, *numbers)
            self.clock_s += trial.total_s
            return replace(trial, state="hung", reason="slow") if settings else trial

    class Clocked(Bench):
        def time_left(self) -> float:
            return self.budget_s - world.clock_s

    world = Slow({})
    bench = Clocked(world.make, rate, 60.0, 4.0)
    bench.measure({})
    trial = bench.measure({"a": "on"})
    assert limits[1] == 60.0 - 5.0 - 2 * 5.0
    assert trial.state == "cut short"
    assert trial.reason == "it had not ended after 45 s, all that the budget left for it"
    bench.measure({})
    assert limits[2] == 10 * 5.0  # as long as a trial is waited for


def test_a_trial_that_hangs_does_not_take_all_of_a_small_budget() -> None:
    bench = Bench(World({}).make, rate, 100.0, 4.0)
    bench.trials[()] = [replace(World({}).make({}, 0, 32, 12, 1.0), total_s=1.0)]
    assert bench.patience_s() == 50.0
    assert replace(bench, budget_s=3600.0).patience_s() == 180.0


def test_a_trial_that_outlasts_all_patience_hangs_and_is_not_short_of_budget() -> None:
    world = World({}, states={frozenset({"a"}): "hung"})
    bench = Bench(world.make, rate, 1e6, 4.0)
    bench.measure({})
    trial = bench.measure({"a": "on"})
    assert (trial.state, trial.reason) == ("hung", "it is hung")


def test_a_second_look_that_is_cut_short_leaves_no_figures_beside_it() -> None:
    class Short(World):
        def make(self, settings, *numbers):  # type: ignore[no-untyped-def]
            trial = super().make(settings, *numbers)
            is_second = bool(settings) and len(seen) > 0
            seen.extend(settings)
            return replace(trial, state="cut short", step_s=()) if is_second else trial

    seen: list[str] = []
    one = climb(Short({"a": 1.02}, 0.001), [A])
    rung = rung_of(one, "a")
    assert (rung.state, len(seen)) == ("cut short", 2)
    assert (rung.samples_per_s, rung.ratio, rung.memory_bytes) == (None, None, None)


def test_a_trial_that_was_cut_short_is_made_again_when_there_is_time(tmp_path: Path) -> None:
    world = World({}, states={frozenset({"a"}): "cut short"})
    first, later = (
        Bench(world.make, rate, 60.0, 4.0, log=tmp_path / "trials.jsonl") for _ in range(2)
    )
    first.measure({})
    first.measure({"a": "on"})
    later.load()
    assert later.n_resumed == 1
    world.states = {}
    assert later.measure({"a": "on"}).state == "ok"


@dataclass
class Weighed(World):
    """Levers that make the training larger or smaller."""

    memory: Mapping[str, float] = field(default_factory=dict)

    def make(self, settings: Mapping[str, str], *numbers: Any) -> Trial:
        """One trial."""
        factor = next((self.memory[name] for name in settings if name in self.memory), 1.0)
        return replace(
            super().make(settings, *numbers),
            host_peak_bytes=int(factor * 2**30),
            energy_per_sample_j=factor,
        )


def test_what_takes_more_memory_than_the_limit_is_refused_however_fast_it_is() -> None:
    world = Weighed({"a": 3.0, "b": 1.3}, memory={"a": 2.5, "b": 1.5})
    one = climb(world, [A, B], memory_limit_bytes=2.0 * 2**30)
    assert one.best == {"b": "on"}
    refused = rung_of(one, "a")
    told = "it takes more memory than the limit"
    assert (refused.state, refused.reason, refused.kept) == ("oom", told, False)
    assert climb(world, [A, B]).best == {"a": "on", "b": "on"}


def test_a_limit_that_the_command_itself_exceeds_binds_once_something_fits() -> None:
    """The baseline takes 3 GiB, and so it does with `a`; `b` takes off 2, `c` puts on 2."""

    class Grown(World):
        def make(self, settings, *numbers):  # type: ignore[no-untyped-def]
            gib = 3 - 2 * ("b" in settings) + 2 * ("c" in settings)
            return replace(super().make(settings, *numbers), host_peak_bytes=gib * 2**30)

    world = Grown({"a": 1.5, "b": 1.3, "c": 1.5})
    one = climb(world, [A, B, C], memory_limit_bytes=2.0 * 2**30)
    assert one.best == {"a": "on", "b": "on"}
    assert rung_of(one, "a").state == "ok"
    assert rung_of(one, "c").state == "oom"


@pytest.mark.parametrize(
    ("objective", "better", "worse"),
    [
        (MEMORY, "memory -50.0 % [", ("memory +25.0 % [", ": larger")),
        (ENERGY, "samples a joule +100.0 % [", ("samples a joule -20.0 % [", ": fewer samples")),
    ],
    ids=lambda one: one.name if isinstance(one, Objective) else "",
)
def test_words_and_ratios_fit_the_objective(
    objective: Objective, better: str, worse: tuple[str, str]
) -> None:
    world = Weighed({"a": 0.9, "b": 2.0}, memory={"b": 1.25, "a": 0.5})
    bench = Bench(world.make, objective.score, 1e6, 4.0)
    one = Climb(
        bench=bench, levers={"a": A, "b": B}, needed_values=lambda needed: "on", objective=objective
    )
    one.measure_baseline()
    one.try_all(in_turn(B, A))
    large, small = one.rungs
    assert large.reason.startswith(worse[0])
    assert worse[1] in large.reason
    assert small.reason.startswith(better)
    assert (large.ratio, small.ratio) == (pytest.approx(0.8), pytest.approx(2.0))


def test_over_the_baseline_ratio_and_gain_are_the_same_figure() -> None:
    for seed in range(10):
        one = climb(World({"a": 1.3, "b": 1.2}, 0.1, seed=seed), [A, B], promise=0.25)
        first = one.rungs[0]
        assert first.ratio == first.gain


def test_a_climb_without_time_knows_how_much_a_further_try_takes() -> None:
    world = World({"a": 1.5, "b": 1.5})  # trials take 5 s
    bench = Bench(world.make, rate, 16.0, 4.0)
    one = Climb(bench=bench, levers={"a": A}, needed_values=lambda needed: "on")
    one.measure_baseline()
    one.try_all(in_turn(A))
    # The trial, the best beside it, and both once more at the end.
    assert one.further_try_s == pytest.approx(20.0)
    assert climb(world, [A]).further_try_s is None


def test_steps_say_nothing_of_how_well_memory_is_known() -> None:
    world = World({})
    bench = Bench(world.make, lambda trial: 1 / (trial.host_peak_bytes or 1), 60.0, 4.0)
    bench.measure({})
    assert bench.measured({}).errors == (0.0,)
    assert bench.measured({}, rate).errors[0] > 0.0


def test_a_lever_that_leaves_the_step_to_its_host_is_tried_with_what_helps_there() -> None:
    """Neither pays alone: kernels are three times as fast, or launched in a third of the time."""
    world = HostAndDevice({}, on_device={"a": 3.0}, on_host={"b": 3.0})
    one = climb(world, [A, B], promise=0.4)
    assert one.best == {"a": "on", "b": "on"}
    assert one.result.value == pytest.approx(0.062 / 0.0206, rel=0.08)
    rungs = one.rungs
    assert [(r.lever, r.kept) for r in rungs] == [("a", False), ("a", True), ("b", True)]
    assert rungs[1].reason == "together with b"
    assert rungs[2].reason.endswith(", together with a")
    assert all(rung.contribution for rung in rungs if rung.kept)


def test_what_promises_little_is_not_tried_with_others() -> None:
    world = HostAndDevice({}, on_device={"a": 3.0}, on_host={"b": 3.0})
    one = climb(world, [A, B], promise=0.05)
    assert one.best == {}
    assert (("a", "on"), ("b", "on")) not in one.bench.trials


def test_a_pair_that_does_not_pay_leaves_both_to_be_tried_alone() -> None:
    world = HostAndDevice({}, on_device={"a": 3.0, "b": 0.3})
    one = climb(world, [A, B], promise=0.4)
    assert one.best == {}
    together, alone = (rung.reason for rung in one.rungs if rung.lever == "b")
    assert "together with a: slower" in together
    assert alone.endswith("slower")
    assert "together" not in alone


def test_what_gained_nothing_is_tried_again_once_the_step_waits_for_something_else() -> None:
    """A makes kernels faster, which nobody sees until B has made their launches so."""
    world = HostAndDevice({}, device_s=0.03, host_s=0.06, on_device={"a": 3.0}, on_host={"b": 3.0})
    one = climb(world, [A, B], promise=0.4)
    assert [(rung.lever, rung.kept) for rung in one.rungs] == [
        *(("a", False), ("b", True), ("a", True))
    ]
    assert one.best == {"a": "on", "b": "on"}


def test_what_left_the_step_to_its_host_is_tried_again_when_the_best_is_another() -> None:
    """B pays a little alone and promises so little that it is not tried with A."""
    world = HostAndDevice({}, on_device={"a": 3.0, "b": 1.2}, on_host={"b": 3.0})
    one = Climb(
        bench=Bench(world.make, rate, 1e6, 4.0),
        levers={"a": A, "b": B},
        needed_values=lambda needed: "on",
    )
    one.measure_baseline()
    one.try_all(
        lambda kept, trial: [Candidate(A, "on", promise=0.4), Candidate(B, "on", promise=0.05)]
    )
    assert [(rung.lever, rung.kept) for rung in one.rungs] == [
        *(("a", False), ("b", True), ("a", True))
    ]


def test_what_does_harm_is_not_tried_with_others() -> None:
    world = HostAndDevice({}, on_device={"b": 3.0}, on_host={"a": 0.4})
    one = climb(world, [A, B], promise=0.4)
    assert (("a", "on"), ("b", "on")) not in one.bench.trials


def test_what_is_slower_for_what_the_step_waits_for_is_not_tried_again() -> None:
    world = HostAndDevice(
        {}, device_s=0.03, host_s=0.06, on_device={"a": 3.0}, on_host={"a": 0.5, "b": 3.0}
    )
    one = climb(world, [A, B], promise=0.4)
    assert [(rung.lever, rung.kept) for rung in one.rungs] == [("a", False), ("b", True)]


@dataclass
class Multiplied(World):
    """Levers that are worth something else together than one by one."""

    of: Mapping[str, float] = field(default_factory=dict)
    """Speed-ups by the names of all levers that are on."""

    def make(self, settings: Mapping[str, str], *numbers: Any) -> Trial:
        """One trial."""
        self.speedups = {next(iter(settings), ""): self.of.get("".join(sorted(settings)), 1.0)}
        return super().make(settings, *numbers)


def pair_first(kept: Mapping[str, str], trial: Trial) -> list[Candidate]:
    alone = [Candidate(A, "on", promise=0.3), Candidate(B, "on", promise=0.3)]
    if "b" in kept:
        return alone
    return [Candidate(A, "on", promise=0.5, together=(("b", "on"),)), *alone]


def climb_pair_first(world: World, budget_s: float = 1e6) -> Climb:
    one = Climb(
        bench=Bench(world.make, rate, budget_s, 4.0),
        levers={"a": A, "b": B},
        needed_values=lambda needed: "on",
    )
    one.measure_baseline()
    one.climb(pair_first)
    return one


def test_levers_that_multiply_each_other_are_kept_together() -> None:
    world = Multiplied({}, spread=0.005, of={"a": 1.01, "b": 1.0, "ab": 1.9})
    one = climb_pair_first(world)
    assert one.best == {"a": "on", "b": "on"}
    b, a = one.rungs
    assert (a.lever, b.lever) == ("a", "b")
    assert "together with b" in a.reason
    assert b.reason.startswith("together with a")
    # Each is worth what is lost without it, and not a share of what both are.
    for rung in one.rungs:
        assert rung.kept
        assert rung.contribution == pytest.approx(1.9, rel=0.05)


def test_a_passenger_of_a_pair_goes() -> None:
    world = Multiplied({}, spread=0.005, of={"a": 1.9, "b": 1.0, "ab": 1.9})
    one = climb_pair_first(world)
    assert one.best == {"a": "on"}
    (passenger,) = [rung for rung in one.rungs if rung.lever == "b"]
    assert not passenger.kept
    assert "a passenger" in passenger.reason


def test_levers_that_do_each_other_harm_are_tried_one_by_one_behind() -> None:
    world = Multiplied({}, spread=0.005, of={"a": 1.3, "b": 0.8, "ab": 0.9})
    one = climb_pair_first(world)
    assert one.best == {"a": "on"}
    states = [(rung.lever, rung.kept, "together" in rung.reason) for rung in one.rungs]
    assert states == [("a", False, True), ("a", True, False), ("b", False, False)]


def test_what_there_was_no_time_for_is_named_once() -> None:
    world = Multiplied({}, of={"ab": 1.9})
    one = climb_pair_first(world, budget_s=0.0)
    assert [(rung.lever, rung.state) for rung in one.rungs] == [
        ("a", "not tried"),
        ("b", "not tried"),
    ]
