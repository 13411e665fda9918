"""The guard: catches every planted trap, lets honest levers pass, and says why."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotlap.levers import find_levers
from hotlap.records.ladder import Trial
from hotlap.tuner.guard import Claim, Reference, judge
from hotlap.tuner.trial import fingerprints_of

HERE = Path(__file__).parent
TRAP_FILE = str(HERE / "traps.py")
LEVERS = {lever.name: lever for lever in find_levers((TRAP_FILE,))}
TRAPS = [name for name in LEVERS if "_claims_" in name]
CLAIM_NOTHING = [name for name in TRAPS if name.endswith("_nothing")]
BEHIND_DROPOUT = [name for name in LEVERS if name.endswith("_behind_dropout")]
HONEST = ["bf16", "channels_last", "fused_optimizer", "foreach_optimizer", "honest_nothing"]
N_SEEDS = 20


def trial(
    losses: list[float], fingerprints: list[dict[str, Any]] | None = None, is_cut: bool = True
) -> Trial:
    """A trial that ran to its end."""
    return Trial(
        levers={},
        seed=0,
        state="ok",
        reason="",
        last_lines=(),
        total_s=1.0,
        n_steps=len(losses),
        is_cut=is_cut,
        step_s=(0.1,) * len(losses),
        samples_per_s=160.0,
        samples_per_step=16.0,
        phases_s={},
        waits_for_host=False,
        losses=tuple(losses),
        device_peak_bytes=None,
        host_peak_bytes=1 << 20,
        energy_per_sample_j=None,
        mean_w=None,
        fingerprints=fingerprints_of(fingerprints or []),
        done={},
        failed={},
        run="",
    )


Trainings = dict[str, list[Trial]]
"""By lever, one a seed; '' is the baseline, with every seed twice."""


@pytest.fixture(scope="module", params=["calm", "wild"])
def trainings(request: pytest.FixtureRequest) -> Trainings:
    """Real trainings of a small net; in a wild one every difference grows fast."""
    return made(request.param, *HONEST, *TRAPS)


@pytest.fixture(scope="module")
def trainings_with_dropout() -> Trainings:
    """Of a net with dropout, whose masks the levers draw from elsewhere."""
    return made("dropout", "honest_masks", *BEHIND_DROPOUT)


@pytest.fixture(scope="module")
def trainings_by_chance() -> Trainings:
    """That never repeat themselves, and in which every difference grows fast."""
    return made("restless", "honest_nothing", *CLAIM_NOTHING)


def made(kind: str, *levers: str) -> Trainings:
    """Trainings without a lever, with noise, and with each of these."""
    words = [sys.executable, str(HERE / "guard_trainings.py"), kind, TRAP_FILE, str(N_SEEDS)]
    # Without the limit a bf16 product dies on machines that advertise AMX and cannot do it.
    limit = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    done = subprocess.run(
        [*words, *levers], capture_output=True, text=True, env={**os.environ, **limit}
    )
    assert done.returncode == 0, done.stderr
    found: Trainings = {}
    for line in done.stdout.splitlines():
        row = json.loads(line)
        found.setdefault(row["lever"], []).append(trial(row["losses"], row["fingerprints"]))
    return found


def n_passed(trainings: Trainings, name: str) -> int:
    first, again = trainings[""][:N_SEEDS], trainings[""][N_SEEDS:]
    references = [
        Reference([a, b], noisy)
        for a, b, noisy in zip(first, again, trainings["_noise"], strict=True)
    ]
    claim = Claim.of([LEVERS[name]], has_dropout=True)
    return sum(
        judge(reference, one, claim).same
        for reference, one in zip(references, trainings[name], strict=True)
    )


@pytest.mark.parametrize("name", TRAPS)
def test_a_planted_trap_is_caught_on_every_seed(trainings: Trainings, name: str) -> None:
    assert n_passed(trainings, name) == 0


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_lever_passes_at_least_19_times_of_20(trainings: Trainings, name: str) -> None:
    assert n_passed(trainings, name) >= 19


@pytest.mark.parametrize("name", BEHIND_DROPOUT)
def test_a_trap_does_not_hide_behind_other_masks_of_dropout(
    trainings_with_dropout: Trainings, name: str
) -> None:
    assert n_passed(trainings_with_dropout, name) == 0


def test_other_masks_of_dropout_pass_at_least_19_times_of_20(
    trainings_with_dropout: Trainings,
) -> None:
    passed = n_passed(trainings_with_dropout, "honest_masks")
    assert passed >= 19
    one = trainings_with_dropout["honest_masks"][0]
    first = trainings_with_dropout[""][0]
    assert one.losses != first.losses  # else nothing was shown


LOSSES = [2.0 * 0.97**i + 0.05 * (i % 3) for i in range(40)]


@pytest.mark.parametrize("name", CLAIM_NOTHING)
def test_a_trap_does_not_hide_in_a_training_that_does_not_repeat_itself(
    trainings_by_chance: Trainings, name: str
) -> None:
    assert n_passed(trainings_by_chance, name) == 0


def test_in_a_training_that_does_not_repeat_itself_an_honest_lever_passes_19_times_of_20(
    trainings_by_chance: Trainings,
) -> None:
    first, again = trainings_by_chance[""][0], trainings_by_chance[""][N_SEEDS]
    assert first.losses != again.losses
    assert n_passed(trainings_by_chance, "honest_nothing") >= 19


UPDATES: list[dict[str, Any]] = [
    {"fingerprint": i, "inputs": [float(i)], "gradients": [1.0, 2.0], "moved": [True, True]}
    for i in range(12)
]
NOTHING = Claim("nothing", 0.0, False)
ROUNDING = Claim("rounding", 1e-3, False)


def test_the_same_losses_are_the_same_training() -> None:
    verdict = judge(Reference([trial(LOSSES), trial(LOSSES)]), trial(LOSSES), NOTHING)
    assert verdict.same
    assert verdict.text == "bit for bit over 40 steps"


def test_of_fewer_than_30_losses_nothing_is_said() -> None:
    short, enough = trial(LOSSES[:29]), trial(LOSSES[:30])
    refused = judge(Reference([short, short]), short, NOTHING)
    assert not refused.same
    assert refused.text == "the losses of 29 steps can be compared, 30 are needed"
    assert judge(Reference([enough, enough]), enough, NOTHING).same


def test_a_baseline_that_does_not_repeat_itself_allows_as_much() -> None:
    other = trial([x * (1 + 1e-4 * (i % 2)) for i, x in enumerate(LOSSES)])
    near = trial([x * (1 + 1.5e-4 * (i % 2)) for i, x in enumerate(LOSSES)])
    far = trial([x * (1 + 1e-2) for x in LOSSES])
    assert judge(Reference([trial(LOSSES), other]), near, NOTHING).same
    assert not judge(Reference([trial(LOSSES), other]), far, NOTHING).same


@pytest.mark.parametrize("claim", [NOTHING, ROUNDING, Claim("nothing", 0.0, True)])
def test_another_number_of_steps_or_samples_is_another_training(claim: Claim) -> None:
    base = [trial(LOSSES), trial(LOSSES)]
    shorter = trial(LOSSES[:-1], is_cut=False)
    assert "39 steps instead of 40" in judge(Reference(base), shorter, claim).text
    longer, whole = trial([*LOSSES, 0.1]), trial(LOSSES, is_cut=False)
    assert "41 steps instead of 40" in judge(Reference([whole, whole]), longer, claim).text
    assert judge(Reference(base), longer, claim).same  # the baseline was cut, it could go on
    half = replace(trial(LOSSES), samples_per_step=8.0)
    assert judge(Reference(base), half, claim).text == "8 samples a step instead of 16"


def test_unknown_losses_are_never_called_the_same() -> None:
    unknown = replace(trial(LOSSES), losses=(None,) * 40)
    assert not judge(Reference([unknown, unknown]), unknown, NOTHING).same


def test_bounds_of_several_levers_add_up() -> None:
    claim = Claim.of([LEVERS["bf16"], LEVERS["channels_last"], LEVERS["honest_nothing"]])
    assert claim.changes == "rounding"
    assert claim.bound == LEVERS["bf16"].bound + LEVERS["channels_last"].bound


def test_curves_of_other_random_numbers_pass_and_worse_ones_do_not() -> None:
    import random

    draw = random.Random(0)
    noisy = [[x + draw.gauss(0, 0.1) for x in LOSSES] for _ in range(21)]
    claim = Claim("nothing", 0.0, True)
    base = [trial(noisy[0]), trial(noisy[0])]
    assert sum(judge(Reference(base), trial(one), claim).same for one in noisy[1:]) >= 19
    worse = trial([x + 0.3 for x in noisy[1]])
    assert not judge(Reference(base), worse, claim).same


def test_larger_batches_may_take_fewer_steps_over_the_same_samples() -> None:
    maths = Claim("maths", 0.0, False)
    whole = trial(LOSSES, is_cut=False)
    doubled = replace(trial(LOSSES[:21], is_cut=False), samples_per_step=32.0)
    assert judge(Reference([whole, whole]), doubled, maths).same
    skipping = replace(trial(LOSSES[:10], is_cut=False), samples_per_step=32.0)
    assert judge(Reference([whole, whole]), skipping, maths).text == "320 samples instead of 640"
    fewer = trial(LOSSES[:20], is_cut=False)
    assert judge(Reference([whole, whole]), fewer, maths).text == "20 steps instead of 40"


def test_allowed_maths_has_to_train() -> None:
    maths = Claim("maths", 0.0, False)
    base = [trial(LOSSES), trial(LOSSES)]
    assert judge(Reference(base), replace(trial(LOSSES), samples_per_step=64.0), maths).same
    assert not judge(Reference(base), trial([x + i for i, x in enumerate(LOSSES)]), maths).same
    flat = judge(Reference(base), trial([1.6 + 0.05 * (i % 3) for i in range(40)]), maths)
    assert flat.text.startswith("the loss falls to 1.646 only")
    half_as_fast = trial([2.0 * 0.98**i + 0.05 * (i % 3) for i in range(40)])
    assert judge(Reference(base), half_as_fast, maths).same


def test_allowed_maths_that_leaves_parameters_as_they_are_is_told() -> None:
    updates = [{"fingerprint": i, "gradients": [1.0], "moved": [True, True]} for i in range(3)]
    stuck = [{**one, "moved": [True, False]} for one in updates]
    verdict = judge(
        Reference([trial(LOSSES, updates)] * 2), trial(LOSSES, stuck), Claim("maths", 0.0, False)
    )
    assert verdict.same
    assert verdict.text.endswith("1 of 2 parameters stand still in update 1")


@pytest.mark.parametrize(
    ("moved", "problem"),
    [
        ([[True, True], [False, True], [True, True]], ""),
        ([[True, True], [False, False], [True, True]], "no parameter moves in update 2"),
        ([[True, False], [True, False], [True, False]], "1 of 2 parameters do not move"),
    ],
)
def test_with_other_random_numbers_every_parameter_still_moves(
    moved: list[list[bool]], problem: str
) -> None:
    def updates(moves: list[list[bool]]) -> list[dict[str, Any]]:
        return [{"fingerprint": i, "inputs": [1.0], "moved": one} for i, one in enumerate(moves)]

    near = [x * (1 + 1e-3 * (-1) ** i) for i, x in enumerate(LOSSES)]
    first = trial(LOSSES, updates([[True, True]] * 3))
    for claim in (Claim("nothing", 0.0, True), Claim("rounding", 1e-3, False, new_dropout=True)):
        verdict = judge(Reference([first, first]), trial(near, updates(moved)), claim)
        assert verdict.same == (not problem)
        assert problem in verdict.text


def test_batches_grow_alike_on_every_rank() -> None:
    first = replace(trial(LOSSES), samples_by_rank=(8.0, 8.0))
    maths = Claim("maths", 0.0, False)
    alike = replace(first, samples_per_step=32.0, samples_by_rank=(16.0, 16.0))
    assert judge(Reference([first, first]), alike, maths).same
    apart = replace(first, samples_per_step=24.0, samples_by_rank=(8.0, 16.0))
    told = judge(Reference([first, first]), apart, maths).text
    assert told == "batches of the ranks are 1 to 2 times as large as before"


def test_fingerprints_are_those_of_the_first_rank() -> None:
    events = [{"fingerprint": 0, "rank": 1, "inputs": [7.0]}, {"fingerprint": 0, "inputs": [3.0]}]
    assert [one.inputs for one in fingerprints_of(events)] == [(3.0,)]


def test_the_last_batch_of_an_epoch_does_not_make_another_training() -> None:
    """The mean over a window depends on how many of them are in it; steps do not."""
    batches = (16,) * 13 + (6,)
    first = replace(trial(LOSSES), samples=batches * 3, samples_per_step=15.25)
    later = replace(first, samples=batches * 4, samples_per_step=15.5)
    assert judge(Reference([first, first]), later, NOTHING).same
    smaller = replace(first, samples=(8, *batches[1:]) * 3, samples_per_step=14.7)
    told = judge(Reference([first, first]), smaller, NOTHING).text
    assert told == "14.7 samples a step instead of 15.25"


def test_samples_that_are_counted_on_one_side_only_are_not_the_same() -> None:
    first, unknown = trial(LOSSES), replace(trial(LOSSES), samples_per_step=None)
    told = judge(Reference([first, first]), unknown, NOTHING).text
    assert told == "unknown samples a step instead of 16"
    assert judge(Reference([unknown, unknown]), unknown, NOTHING).same


def seen(*inputs: list[float]) -> list[dict[str, Any]]:
    """Updates with these inputs."""
    return [{**one, "inputs": each} for one, each in zip(UPDATES, inputs, strict=True)]


@pytest.mark.parametrize(
    ("flips_at", "problem"), [(8, ""), (5, ""), (3, "the model's input in step 4 is another one")]
)
def test_an_agent_sees_other_things_soon_after_its_first_other_action(
    flips_at: int, problem: str
) -> None:
    """Noise flips an action before update 9; what a lever flips long before it, is no rounding."""

    def run(flips_at: int) -> list[dict[str, Any]]:
        return seen(*([float(i), 9.0 + (i >= flips_at)] for i in range(12)))

    near = [x * (1 + 1e-7 * (-1) ** i) for i, x in enumerate(LOSSES)]
    plain = trial(LOSSES, run(12))
    reference = Reference([plain, plain], trial(near, run(8)))
    verdict = judge(reference, trial(near, run(flips_at)), ROUNDING)
    assert verdict.same == (not problem)
    assert problem in verdict.text


def test_pictures_that_a_model_makes_are_no_reason_to_leave_out_the_data() -> None:
    near = [x * (1 + 1e-7 * (-1) ** i) for i, x in enumerate(LOSSES)]
    plain = trial(LOSSES, seen(*([float(i), 9.0] for i in range(12))))
    noisy = trial(near, seen(*([float(i), 9.0 + (i > 0)] for i in range(12))))
    reference = Reference([plain, plain], noisy)
    made = trial(near, seen(*([float(i), 9.0 - (i > 0)] for i in range(12))))
    assert judge(reference, made, ROUNDING).same
    stale = trial(near, seen(*([float(min(i, 10)), 9.0 - (i > 0)] for i in range(12))))
    assert "input in step 12 is another one" in judge(reference, stale, ROUNDING).text


@pytest.mark.parametrize(
    ("others", "problem"),
    [
        ([True, False], ""),
        ([False, True], ""),
        ([False, False], "1 of 2 parameters do not move"),
    ],
)
def test_a_parameter_that_stands_still_now_and_then_may_at_other_times(
    others: list[bool], problem: str
) -> None:
    def run(moves: list[bool]) -> list[dict[str, Any]]:
        return [{**one, "moved": [True, moves[i % 2]]} for i, one in enumerate(UPDATES)]

    near = [x * (1 + 1e-7 * (-1) ** i) for i, x in enumerate(LOSSES)]
    plain = trial(LOSSES, run([True, False]))
    verdict = judge(Reference([plain, plain]), trial(near, run(others)), ROUNDING)
    assert verdict.same == (not problem)
    assert problem in verdict.text


def test_a_baseline_that_drifts_late_does_not_excuse_what_is_wrong_from_the_start() -> None:
    drifting = trial([x * (1 + 1e-7 * 1.3**i) for i, x in enumerate(LOSSES)], UPDATES)
    first = trial(LOSSES, UPDATES)
    reference = Reference([first, drifting])
    near = [x * (1 - 1e-7 * 1.3**i) for i, x in enumerate(LOSSES)]
    assert judge(reference, trial(near, UPDATES), NOTHING).same
    assert not judge(reference, trial([x * 1.001 for x in LOSSES], UPDATES), NOTHING).same
    frozen = [{**one, "moved": [True, False]} for one in UPDATES]
    assert "1 of 2 parameters stand still" in judge(reference, trial(near, frozen), NOTHING).text
    larger = [{**one, "gradients": [1.01, 2.02]} for one in UPDATES]
    assert "1.0100 times as large" in judge(reference, trial(near, larger), NOTHING).text
