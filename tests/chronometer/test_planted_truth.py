"""Busy time of known length, planted in each phase of real loops, is found in that phase.

The bound is the larger of 3 % and 0.3 ms. The work of the script itself (a small layer, a loss, on
caches that a spin has left cold) lies in the same phases: 0.2 to 1.2 ms for each spin. So the spins
are long enough for that to stay inside 3 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median

import pytest
from running import Result

PLANTED_MS = {"data": 50, "forward": 60, "backward": 50, "optimizer": 50, "other": 60}
SEVERAL_SPINS_A_STEP_MS = {"data": 30, "forward": 45, "backward": 30, "optimizer": 30, "other": 60}
N_STEPS = 9
N_LEFT_OUT = 2

STYLES = (
    *("planted", "accumulate", "scaler", "lbfgs", "gan", "validation", "generator", "functional"),
    *("loader2", "lightning", "accelerate", "hf"),
)
# The framework's own work there is 2 ms and more a step, and rightly part of the phase.
FRAMEWORK_WORK = {
    "lightning": {"other"},  # callbacks, progress and logging between the batches
    "hf": {"other"},  # the same
    "lbfgs": {"optimizer"},  # the directions that it computes between the closure calls
}


def run_planted(hotlap_time: Callable[..., Result], style: str) -> Result:
    script = ["planted.py"] if style == "planted" else ["planted_styles.py", "--style", style]
    several = style in ("accumulate", "lbfgs", "gan")
    planted_ms = SEVERAL_SPINS_A_STEP_MS if several else PLANTED_MS
    spins = [word for phase, ms in planted_ms.items() for word in (f"--{phase}", str(ms))]
    result = hotlap_time(*script, *spins, "--steps", str(N_STEPS), options=["--quiet"])
    assert result.code == 0, result.stderr.decode()
    assert result.n_steps == result.truth["steps"]
    return result


def typical_s(values: Sequence[float]) -> float:
    """The median step: loops that fetch a batch ahead put it one step from where it is used."""
    return median(values[N_LEFT_OUT:])


def bound_s(planted_s: float) -> float:
    return max(0.03 * planted_s, 0.3e-3)


@pytest.mark.needs_quiet
@pytest.mark.parametrize("style", STYLES)
def test_planted_time_is_found_in_its_phase(hotlap_time: Callable[..., Result], style: str) -> None:
    result = run_planted(hotlap_time, style)
    planted = {phase: typical_s(values) for phase, values in result.truth["planted"].items()}
    if style == "generator":
        # With no DataLoader all that precedes the forward is taken for data, and a note says so.
        planted["data"] += planted.pop("other")
        assert any("no DataLoader was seen" in note for note in result.run["notes"])
    wrong = {}
    for phase in planted.keys() - FRAMEWORK_WORK.get(style, set()):
        found_s = typical_s([ns / 1e9 for ns in result.ranks[0]["steps"][f"{phase}_ns"]])
        print(f"{phase:<10} found {found_s * 1e3:.3f} ms, planted {planted[phase] * 1e3:.3f} ms")
        if abs(found_s - planted[phase]) > bound_s(planted[phase]):
            wrong[phase] = (found_s, planted[phase])
    assert not wrong
    if style == "validation":
        mean_s = fmean(result.truth["validation"])
        # The passes have the forwards' and the loader's own work in them, five batches of each.
        assert abs(result.run["validation"]["mean_s"] - mean_s) < bound_s(mean_s) + 3e-3
