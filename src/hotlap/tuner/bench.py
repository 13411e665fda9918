"""The bench: makes trials, remembers them, and keeps to the time it was given.

Trials are written down one by one as they end. A climb that was interrupted is made again from its
start with the trials that are on file, which takes no time, and goes on from there: with the same
results it comes to the same decisions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from hotlap.errors import RecordError
from hotlap.records.codec import from_json, to_json
from hotlap.records.ladder import Trial
from hotlap.tuner.noise import Between, Measured, typical_step, within_error

RECENT = 2
"""Measurements of the best settings that a rung is compared with: older ones may have drifted."""
MIN_STEPS = 32
"""A little more than the guard asks for; the first look has no more, so that it counts where steps
turn out to be slow."""
MAX_STEPS = 3000
N_WARMUP = 12
"""Steps at the start of a trial that no figure counts: compilers and caches settle in them."""

Settings = Mapping[str, str]
Key = tuple[tuple[str, str], ...]
"""Settings, in an order of their own."""
Make = Callable[[Settings, int, int, int, float], Trial]
"""Runs a trial: levers, seed, measured steps, warm-up steps, time limit in seconds."""
Score = Callable[[Trial], float | None]
"""What is to be made large."""


@dataclass(slots=True)
class Bench:
    """Trials made so far, by their settings."""

    make: Make
    score: Score
    budget_s: float
    trial_s: float
    """How long the measured part of a trial is to be."""
    log: Path | None = None
    n_steps: int = MIN_STEPS
    n_warmup: int = N_WARMUP
    queue: Callable[[Settings], int] = lambda settings: 0
    """Further warm-up steps that these settings need."""
    fixed_steps: bool = False
    on_start: Callable[[Settings], None] = lambda settings: None
    began: float = field(default_factory=time.monotonic)
    trials: dict[Key, list[Trial]] = field(default_factory=dict)
    on_file: dict[Key, list[Trial]] = field(default_factory=dict)
    n_resumed: int = 0

    def load(self) -> None:
        """Take up the trials that an interrupted climb left on file."""
        if self.log is None or not self.log.is_file():
            return
        for line in self.log.read_text(encoding="utf-8").splitlines():
            try:
                trial = from_json(Trial, json.loads(line), "")
            except (ValueError, RecordError):
                continue  # the line that was being written when it was interrupted
            if trial.state == "cut short":
                continue  # there may be time for it now
            self.on_file.setdefault(key_of(trial.levers), []).append(trial)
            self.n_resumed += 1

    def measure(self, settings: Settings, seed: int = 0) -> Trial:
        """Run a trial, or take it from the file."""
        waiting = self.on_file.get(key_of(settings), [])
        if waiting and waiting[0].seed == seed:
            trial = waiting.pop(0)
        else:
            self.on_start(settings)
            limit_s = self.time_limit(settings)
            n_warmup = self.n_warmup + self.queue(settings)
            trial = self.make(settings, seed, self.n_steps, n_warmup, limit_s)
            if trial.state == "hung" and limit_s < self.patience_s():
                reason = f"it had not ended after {limit_s:.0f} s, all that the budget left for it"
                trial = replace(trial, state="cut short", reason=reason)
            self._write(trial)
        self.trials.setdefault(key_of(settings), []).append(trial)
        return trial

    def choose_steps(self, trial: Trial) -> None:
        """As many steps as take about `trial_s`, but never fewer than the guard needs."""
        if not self.fixed_steps and trial.step_s:
            n = int(self.trial_s / typical_step(trial.step_s))
            if not 0.5 * self.n_steps <= n <= 2 * self.n_steps:  # else near enough
                self.n_steps = min(max(n, MIN_STEPS), MAX_STEPS)

    def _write(self, trial: Trial) -> None:
        if self.log is not None:
            with self.log.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(to_json(trial)) + "\n")

    # Time -------------------------------------------------------------------------------------

    def time_left(self) -> float:
        """Seconds of the budget."""
        return self.budget_s - (time.monotonic() - self.began)

    def typical_trial_s(self) -> float:
        """How long a trial takes, start and end included; 0 before the first."""
        durations = sorted(t.total_s for ts in self.trials.values() for t in ts if t.state == "ok")
        return durations[len(durations) // 2] if durations else 0.0

    def patience_s(self) -> float:
        """When a trial is taken for hung: compilers may take minutes, but not all of the budget."""
        base = self.trials.get((), [])
        least_s = min(180.0, self.budget_s / 2)
        return max(least_s, 10 * base[0].total_s) if base else self.budget_s

    def time_limit(self, settings: Settings) -> float:
        """No more than is left; of new settings, less what it takes to prove the best without."""
        proof_s = 0.0 if key_of(settings) in self.trials else 2 * self.typical_trial_s()
        return max(min(self.patience_s(), self.time_left() - proof_s), 5.0)

    def has_time_for(self, n_trials: float) -> bool:
        """Whether so many more trials fit into the budget."""
        return self.time_left() > n_trials * self.typical_trial_s()

    # Figures ----------------------------------------------------------------------------------

    def measured(
        self, settings: Settings, score: Score | None = None, n_recent: int = RECENT
    ) -> Measured:
        """The last figures of settings that were measured; by the objective if nothing is said."""
        score = score or self.score
        made = self.trials.get(key_of(settings), ())
        trials = [t for t in made if t.state == "ok" and t.seed == 0]
        # Steps say how well their own rate is known, and nothing of memory or energy.
        scores = [
            (score(trial), within_error(trial.step_s) if score is rate else 0.0)
            for trial in trials[-n_recent:]
        ]
        known = [(score, error) for score, error in scores if score]
        return Measured(tuple(s for s, _ in known), tuple(e for _, e in known))

    def between(self, score: Score | None = None) -> Between:
        """The noise from start to start, from all settings that were measured more than once."""
        score, groups = score or self.score, []
        for trials in self.trials.values():
            scores = [score(t) for t in trials if t.state == "ok" and t.seed == 0]
            rates = [score for score in scores if score]
            # Neighbours in time only: drift over the climb is not noise between two starts.
            groups += [rates[i : i + 2] for i in range(len(rates) - 1)]
        return Between.of(groups)


def key_of(settings: Settings) -> Key:
    """Settings as a key, whatever their order."""
    return tuple(sorted(settings.items()))


def rate(trial: Trial) -> float | None:
    """Samples a second; steps a second where samples are unknown."""
    if trial.state != "ok" or not trial.step_s:
        return None
    return (trial.samples_per_step or 1.0) / typical_step(trial.step_s)


def memory_of(trial: Trial) -> int | None:
    """Peak bytes on the device; on the host where there is no device."""
    return trial.device_peak_bytes or trial.host_peak_bytes
