"""Where a climb stands: the best settings so far, the rungs that led there, and the way back.

A lever that was kept can fall again: bettered by another one, not missed when it is left out, or
failing when the best is measured again, as a batch that just fitted. Then the climb goes back to
where it stood before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from hotlap.levers.common import noise
from hotlap.levers.common.lever import Lever
from hotlap.records.ladder import Rate, Rung, RungState, Trial
from hotlap.tuner.bench import RECENT, Bench, key_of, memory_of, rate
from hotlap.tuner.forecast import Forecast
from hotlap.tuner.guard import Claim, Reference, Verdict, judge
from hotlap.tuner.noise import Interval, ratio
from hotlap.tuner.objective import TIME, Objective
from hotlap.tuner.rungs import untried

FAILURES = ("oom", "crashed", "hung", "too short", "diverged")


@dataclass(frozen=True, slots=True)
class Foothold:
    """Where the climb stood before a lever was kept, to go back to."""

    best: dict[str, str]
    rungs: tuple[Rung, ...]
    reference: Reference
    judged_from: dict[str, str]
    has_noise: bool


@dataclass(slots=True, kw_only=True)
class Standing:
    """The state of a climb, and what follows from it."""

    bench: Bench
    levers: Mapping[str, Lever]
    objective: Objective = TIME
    """Whose score the bench has."""
    on_rung: Callable[[Rung], None] = lambda rung: None
    on_kept: Callable[[Mapping[str, str]], None] = lambda levers: None
    best: dict[str, str] = field(default_factory=dict)
    rungs: list[Rung] = field(default_factory=list)
    reference: Reference = field(default_factory=lambda: Reference([]))
    has_dropout: bool = False
    notes: list[str] = field(default_factory=list)
    memory_limit_bytes: float | None = None
    is_complete: bool = True
    result: Interval = field(default_factory=lambda: Interval(1.0, 1.0, 1.0))
    """How many times faster the best is than the baseline."""
    last_gain: tuple[Mapping[str, str], Interval] | None = None
    """What the lever that was kept last gained, and over which settings."""
    footholds: list[Foothold] = field(default_factory=list)
    """One for each lever that was kept; fewer after the climb went back."""
    reopened: set[tuple[str, str]] = field(default_factory=set)
    """Levers with values that failed on top of what fell since: it may not have been their fault.
    """
    _has_noise: bool = False
    _judged_from: dict[str, str] = field(default_factory=dict)
    """The settings that `reference` is of."""

    # Figures ----------------------------------------------------------------------------------

    @property
    def forecast(self) -> Forecast:
        """How long further trials will take."""
        return Forecast(self.bench, self.levers)

    def gain_of(self, settings: Mapping[str, str], n_recent: int = RECENT) -> Interval:
        """Of settings over the best."""
        bench = self.bench
        new, old = (bench.measured(one, n_recent=n_recent) for one in (settings, self.best))
        return ratio(new, old, bench.between())

    def ratio_so_far(self, n_recent: int = RECENT) -> Interval:
        """The best against the baseline, from their last measurements."""
        best, first = (self.bench.measured(one, n_recent=n_recent) for one in (self.best, {}))
        return ratio(best, first, self.bench.between())

    def rate_of(self, settings: Mapping[str, str]) -> Rate:
        """Samples a second with the interval, whatever the objective is."""
        measured, between = self.bench.measured, self.bench.between(rate)
        interval = measured(settings, rate).interval(between)
        others = (memory_of, lambda trial: trial.energy_per_sample_j)
        known = [measured(settings, figure) for figure in others]
        means = [one.interval(between).value if one.rates else None for one in known]
        return Rate(interval.value, interval.low, interval.high, *means)

    # Same training ----------------------------------------------------------------------------

    def claim(self, settings: Mapping[str, str]) -> Claim:
        """Of the levers by which the reference differs, on either side."""
        names = {**settings, **self._judged_from}
        others = [n for n in names if settings.get(n) != self._judged_from.get(n)]
        return Claim.of([self.levers[name] for name in others], self.has_dropout)

    def judged(
        self, settings: Mapping[str, str], trial: Trial
    ) -> tuple[RungState, str, Verdict | None]:
        """Whether a trial that went well may be the best: within the limit, the same training."""
        limit = self.memory_limit_bytes
        if limit and (memory_of(trial) or 0) > limit and self._fits(self.best):
            return "oom", "it takes more memory than the limit", None
        claim = self.claim(settings)
        if claim.needs_noise(repeats_itself=not self.reference.own_deviation):
            self.measure_noise()
        verdict = judge(self.reference, trial, claim)
        return ("ok", "", verdict) if verdict.same else ("different", verdict.text, verdict)

    def _fits(self, settings: Mapping[str, str]) -> bool:
        trials = self.bench.trials.get(key_of(settings), [])
        limit = self.memory_limit_bytes or 0
        return any((memory_of(trial) or 0) <= limit for trial in trials if trial.state == "ok")

    def measure_noise(self) -> None:
        """Have the baseline run with noise, once: the first lever that rounds is judged by it.

        With levers that are kept and change nothing it is the same training, and faster.
        """
        if self._has_noise:
            return
        self._has_noise = True
        nothing = Claim("nothing", 0.0, False)
        exact = {
            name: value
            for name, value in self.best.items()
            if self._judged_from.get(name) == value
            or Claim.of([self.levers[name]], self.has_dropout) == nothing
        }
        noisy = self.bench.measure({**exact, noise.NAME: noise.HALF_PRECISION})
        if noisy.state == "ok":
            self.reference = replace(self.reference, noisy=noisy)

    # Levers that are kept, and that fall again ------------------------------------------------

    def keep(self, lever: Lever, settings: dict[str, str]) -> None:
        """These are the best settings now, because of this lever."""
        here = (self.best, tuple(self.rungs), self.reference, self._judged_from, self._has_noise)
        self.footholds.append(Foothold(*here))
        for name in [name for name, value in self.best.items() if settings.get(name) != value]:
            self.drop(name, "then bettered")
        new = {name for name, value in settings.items() if self.best.get(name) != value}
        for name in sorted(new - {lever.name}):
            is_needed = name in lever.needs
            reason = f"{lever.name} needs it" if is_needed else f"together with {lever.name}"
            needed = untried(self.levers[name], settings[name], "ok", reason)
            self.add(replace(needed, kept=True))
        claim = self.claim(settings)
        self.best = settings
        self.on_kept(self.best)
        if claim.draws_anew or claim.changes == "maths":
            self._judge_from_best()

    def _judge_from_best(self) -> None:
        """Compare what follows with the best: the same maths, and the same random numbers.

        With the baseline, which has others, only curves could be compared from now on, and a lever
        that does harm would hide behind what they allow.
        """
        trials = [t for t in self.bench.trials[key_of(self.best)] if t.state == "ok"]
        self.reference = Reference(trials, known_deviation=self.reference.own_deviation)
        self._judged_from, self._has_noise = dict(self.best), False

    def best_holds(self) -> bool:
        """Measure the best again; where it fails now, go back to the one before it.

        A batch that just fits may not fit the next time.
        """
        trial = self.bench.measure(self.best)
        if not self.footholds or trial.state in ("ok", "cut short"):
            return True
        before = self.footholds.pop()
        n = len(before.rungs)
        fallen = [rung for rung in self.rungs[n:] if rung.kept]
        self.reopened |= {(r.lever, r.value) for r in self.rungs[n:] if r.state in FAILURES}
        self.rungs[:n] = before.rungs
        self.rungs[n:] = [replace(rung, kept=False) for rung in self.rungs[n:]]
        self.best, self.reference = before.best, before.reference
        self._judged_from, self._has_noise = before.judged_from, before.has_noise
        self.last_gain = None
        why = f"it was kept, and failed when it was measured again: {trial.reason}"
        for rung in fallen:
            lever = self.levers[rung.lever]
            self.add(self.rung(lever, rung.value, trial, None, trial.state, why))
        self.on_kept(self.best)
        return False

    def contribute(self, name: str, gain: Interval | None, reason: str) -> None:
        """Write down what a kept lever is worth, or why that is not known."""
        for i, rung in enumerate(self.rungs):
            if rung.kept and rung.lever == name:
                self.rungs[i] = replace(
                    rung,
                    contribution=gain.value if gain else None,
                    contribution_low=gain.low if gain else None,
                    contribution_high=gain.high if gain else None,
                    reason="; ".join(filter(None, (rung.reason, reason))),
                )

    def drop(self, name: str, reason: str) -> None:
        """A lever is not kept any more."""
        for i, rung in enumerate(self.rungs):
            if rung.kept and rung.lever == name:
                self.rungs[i] = replace(rung, kept=False, reason=f"{rung.reason}; {reason}")

    # Rungs as data ----------------------------------------------------------------------------

    def add(self, rung: Rung) -> None:
        """One more rung, which is told."""
        if rung.state == "cut short":
            self.is_complete = False
        self.rungs.append(rung)
        self.on_rung(rung)

    def _against_baseline(self, trial: Trial, gain: Interval | None) -> float | None:
        if gain and not self.best:
            return gain.value  # over the baseline itself, from all the looks that were taken
        if self.bench.score(trial) is None:
            return None
        bench = self.bench
        return ratio(bench.measured(trial.levers), bench.measured({}), bench.between()).value

    def rung(
        self,
        lever: Lever,
        value: str,
        trial: Trial,
        verdict: Verdict | None,
        state: RungState,
        reason: str,
        gain: Interval | None = None,
    ) -> Rung:
        """What a trial of a lever came to."""
        # One look was not enough, and the next was cut short: nothing is known of it.
        is_measured = trial.state == "ok" and state != "cut short"
        speed = self.rate_of(trial.levers) if is_measured else None
        return Rung(
            lever=lever.name,
            value=value,
            state=state,
            samples_per_s=speed.samples_per_s if speed else None,
            low=speed.low if speed else None,
            high=speed.high if speed else None,
            ratio=self._against_baseline(trial, gain) if speed else None,
            gain=gain.value if gain else None,
            gain_low=gain.low if gain else None,
            gain_high=gain.high if gain else None,
            memory_bytes=memory_of(trial) if is_measured else None,
            energy_per_sample_j=trial.energy_per_sample_j if is_measured else None,
            loss_verdict=verdict.text if verdict else "",
            kept=False,
            reason=reason,
            last_lines=trial.last_lines,
        )
