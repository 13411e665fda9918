"""The climb: baseline, one lever at a time, and each kept one taken away again at the end.

baseline, twice                         what is to be beaten, and how well it repeats itself
for each lever and value, in order, or levers that multiply each other together first:
    a trial on top of the best so far   ends badly, or is another training: a state, go on
    if it rounds, and none did before:  how far rounding drives this training apart: the baseline
                                        once more, with noise on its gradients
    if it draws other random numbers:   what follows is compared with the best, not the baseline
    faster, but by what drift may be?   the best is measured again, so that drift is no gain
    outside the noise?                  kept, and `hotlap.toml` is written
    not, but the step waits elsewhere?  tried together with what promises most there
    not, and later it waits elsewhere?  tried once more
    not, but came near?                 tried once more at the end if there is time; what promised
                                        much also if the best is another or slower by then
wherever the best is measured again     if it fails now, the one before it is the best again
leave one out                           each kept lever's real contribution; passengers go
baseline and best once more             the ratio that is claimed; again where noise hides it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hotlap.errors import UsageError
from hotlap.levers.common.lever import Lever
from hotlap.records.ladder import RungState, Trial
from hotlap.tuner.bench import RECENT, Key, key_of, rate
from hotlap.tuner.bottleneck import Bottleneck, bottleneck
from hotlap.tuner.ending import conclude, leave_one_out
from hotlap.tuner.guard import MIN_STEPS, Reference, Verdict, starts_alike
from hotlap.tuner.noise import Interval
from hotlap.tuner.order import PROMISING, Candidate
from hotlap.tuner.rungs import untried
from hotlap.tuner.second_chance import SecondChances, Unseen
from hotlap.tuner.standing import Standing
from hotlap.tuner.trial import why_not_tuned

Order = Callable[[Mapping[str, str], Trial], Sequence[Candidate]]
"""What is to be tried, the most promising first, given the best settings and a trial of them."""

WORTH_A_SECOND_LOOK = 1.005
"""A gain below this is not measured again."""
HARMFUL = 0.75
"""With less than this of the speed before, no gain is hidden: the lever does harm."""
UNSTEADY = 1.5
"""Two runs of the same command that differ by this factor are worth a note."""
BEYOND_DRIFT = 2.0
"""A gain of at least this factor is none of the machine's."""
MOST_LOOKS = 4
"""Times that such a lever and the best without it are measured, in turns, before it is given up."""


@dataclass(slots=True, kw_only=True)
class Climb(Standing):
    """One climb while it goes on."""

    needed_values: Callable[[Lever], str | None]
    """The value with which a lever that another one needs is applied; None where it does not."""
    start_over: Callable[[], bool] = lambda: False
    """Has trials start from the files that the first one found; False where that changes nothing.
    """
    further_try_s: float | None = None
    """How long the shortest try takes that there was no time for."""
    _order: Order = lambda kept, trial: ()
    _considered: set[Key] = field(default_factory=set)
    """Candidates whose turn has come."""
    _chances: SecondChances = field(default_factory=SecondChances)
    _seen_again: set[Key] = field(default_factory=set)
    """Best settings that were measured once more, before anything was tried again at the end."""

    # The baseline -----------------------------------------------------------------------------

    def measure_baseline(self) -> Trial:
        """The command as it is, twice; not counting a first look that was too short."""
        first = self.bench.trials[()][0] if self.bench.trials else self.look()
        before = self.bench.n_steps
        self.bench.choose_steps(first)
        is_other = self.bench.n_steps != before and first.n_steps >= before
        if is_other or self.bench.queue({}):  # of which the first look did not know
            self.bench.trials[()].clear()
            first = self._look_again(first)
        again = self._look_again(first)
        self.reference = Reference([first, again])
        self._tell_of_unsteady(first, again)
        return first

    def _tell_of_unsteady(self, first: Trial, again: Trial) -> None:
        rates = sorted(filter(None, map(rate, (first, again))))
        if len(rates) == 2 and rates[1] > UNSTEADY * rates[0]:
            self.notes.append(
                f"the machine is not steady: the same command ran {rates[1] / rates[0]:.1f} times "
                "as fast in one of two runs; what a lever is worth can hardly be seen on it"
            )

    def look(self) -> Trial:
        """Run the command as it is."""
        return self._checked(self.bench.measure({}))

    def _look_again(self, before: Trial) -> Trial:
        """Run it once more; from the same files, if it goes by what it left the time before."""
        trial = self.bench.measure({})
        if not starts_alike(before, trial) and self.start_over():
            self.bench.trials[()].pop()
            trial = self.bench.measure({})
        return self._checked(trial, ran_before=True)

    def _checked(self, trial: Trial, *, ran_before: bool = False) -> Trial:
        """A trial of the command as it is, which has to go well."""
        if trial.state != "ok":
            raise UsageError(why_not_tuned(trial, ran_before=ran_before))
        if trial.n_steps < MIN_STEPS:
            ends = f"it ends after {trial.n_steps} steps"
            raise UsageError(f"the command itself cannot be tuned: {ends}, {MIN_STEPS} are needed")
        return trial

    def climb(self, order: Order) -> None:
        """All levers, and what each of them is worth; again where the best fails in the end."""
        while True:
            self.try_all(order)
            if leave_one_out(self) and conclude(self):
                break

    # Rungs ------------------------------------------------------------------------------------

    def try_all(self, order: Order) -> None:
        """One candidate after another, as long as there is time.

        The order is asked for again each time: what was kept makes another step of it, in which
        other things take long.
        """
        self._order = order
        considered = self._considered
        while True:
            candidates = order(self.best, self._best_trial)
            n_footholds = len(self.footholds)
            one = next((c for c in candidates if self._is_next(c)), None)
            one = one or self._last_chance(candidates)
            if len(self.footholds) < n_footholds:
                continue  # the best has fallen, and all is to be asked again
            if one is None:
                break
            key = key_of(one.settings)
            self._chances.take(key)
            self.reopened.discard((one.lever.name, one.value))
            needed_s = self.forecast.try_s(one, self.best)
            if self.bench.time_left() > needed_s:
                self._try(one)
                if len(self.footholds) < n_footholds:
                    continue  # its turn comes again, on top of what the climb went back to
            else:
                self.is_complete = False
                self.further_try_s = min(needed_s, self.further_try_s or needed_s)
                if key not in considered and not one.together:
                    reason = "the budget is too short for it"
                    self.rungs.append(untried(one.lever, one.value, "not tried", reason))
            considered.add(key)
        known = {name for key in considered for name, _ in key}
        known |= {rung.lever for rung in self.rungs}
        for one in candidates:
            if one.not_tried and one.lever.name not in known:
                is_maths = "maths" in one.not_tried
                state: RungState = "not allowed" if is_maths else "not applicable"
                self.add(untried(one.lever, "", state, one.not_tried))

    @property
    def _best_trial(self) -> Trial:
        trials = self.bench.trials[key_of(self.best)]
        return next((trial for trial in trials if trial.state == "ok"), trials[0])

    def _is_next(self, candidate: Candidate) -> bool:
        """Whether it was not tried yet, or its gain was hidden by what is not there any more."""
        key = key_of(candidate.settings)
        # What another lever needed and brought in is there already.
        if candidate.not_tried or (candidate.lever.name, candidate.value) in self.best.items():
            return False
        is_reopened = (candidate.lever.name, candidate.value) in self.reopened
        if key not in self._considered or (is_reopened and not candidate.together):
            return True
        # What a step waits for has to do with its time alone.
        is_promising = candidate.promise >= PROMISING and self.bench.score is rate
        return is_promising and self._chances.is_due(key, self.best, self._waits_for)

    def _last_chance(self, candidates: Sequence[Candidate]) -> Candidate | None:
        """What promised much or came near and was not kept, in time that nothing else needs.

        Each contribution is to be measured.
        """
        left = [
            one
            for one in candidates
            if not one.not_tried
            and not one.settings.items() <= self.best.items()
            # As if it promised nothing: then there is time to prove all the others.
            and self.bench.time_left() > self.forecast.try_s(replace(one, promise=0.0), self.best)
        ]
        promising = [one for one in left if one.promise >= PROMISING]
        self._look_at_the_best_again([key_of(one.settings) for one in promising])
        for one in promising:
            settings = self._on_top(one)
            is_measured = self.bench.measured(settings).rates
            now = self.gain_of(settings, 1) if is_measured else None
            if self._chances.is_due_at_the_end(key_of(one.settings), self.best, now):
                return self._for_the_last_time(one)
        for one in left:
            if self._chances.came_near(key_of(one.settings), self.best):
                return self._for_the_last_time(one)
        return None

    def _for_the_last_time(self, candidate: Candidate) -> Candidate:
        """To be looked at as often as what promises much, for it has been seen to be worth that."""
        self._chances.take_last(key_of(candidate.settings))
        return replace(candidate, promise=max(candidate.promise, PROMISING))

    def _look_at_the_best_again(self, keys: Sequence[Key]) -> None:
        """Once, where a lever seemed to be slower: the machine may have been, and still be."""
        best = key_of(self.best)
        if best in self._seen_again or not self._chances.has_any(keys, self.best):
            return
        self._seen_again.add(best)
        self.best_holds()

    def _try(self, candidate: Candidate) -> None:
        lever, value = candidate.lever, candidate.value
        settings = self._on_top(candidate)
        trial = self.bench.measure(settings)
        if trial.state == "crashed":
            needed = self._needed_by(lever)
            if needed:
                self.add(self.rung(lever, value, trial, None, trial.state, trial.reason))
                settings = {**needed, **settings}
                trial = self.bench.measure(settings)
        self._decide(candidate, settings, trial)

    def _on_top(self, candidate: Candidate) -> dict[str, str]:
        """The best with a candidate."""
        gone = candidate.lever.instead_of
        return {k: v for k, v in self.best.items() if k not in gone} | candidate.settings

    def _needed_by(self, lever: Lever) -> dict[str, str]:
        needed = {}
        for name in lever.needs:
            value = self.needed_values(self.levers[name]) if name in self.levers else None
            if value is not None and name not in self.best:
                needed[name] = value
        return needed

    def _decide(
        self,
        candidate: Candidate,
        settings: dict[str, str],
        trial: Trial,
        *,
        is_together: bool = False,
    ) -> None:
        lever, value = candidate.lever, candidate.value
        state, reason, verdict = self._check(lever, settings, trial)
        if state != "ok":
            reason += self._with_others(settings, lever)
            self.add(self.rung(lever, value, trial, verdict, state, reason))
            return
        gain, n_looks = self.gain_of(settings), 1
        # Another bottleneck hides what it is worth: further looks would not show it.
        most_looks = MOST_LOOKS if is_together or not self._moves_bottleneck(trial) else 2
        while state == "ok" and n_looks < most_looks and self._is_open(candidate, gain, n_looks):
            if not self.best_holds():
                return
            gain = self.gain_of(settings, max(n_looks + 1, RECENT))
            if gain.low <= 1.0 < gain.high and gain.value > self._worth(candidate):
                again = self.bench.measure(settings)
                state, reason, verdict = self._check(lever, settings, again)
                trial = trial if state == "ok" else again
                gain = self.gain_of(settings, max(n_looks + 1, RECENT))
            n_looks += 1
        kept = state == "ok" and gain.low > 1.0
        if kept and lever.values_go_on and self._n_well(settings) < 2:
            again = self.bench.measure(settings)
            state, reason, verdict = self._check(lever, settings, again)
            kept, trial = state == "ok", trial if state == "ok" else again
        if state == "ok":
            reason = self._why(gain, kept, settings, lever)
        rung = self.rung(lever, value, trial, verdict, state, reason, gain)
        if kept:
            self.last_gain = (self.best, gain)
            self.keep(lever, settings)
        self.add(replace(rung, kept=kept))
        if state != "ok" or kept or is_together:
            return
        is_moved = self._moves_bottleneck(trial) and gain.high > HARMFUL
        if gain.high > HARMFUL:
            unseen = Unseen(self.best, None if is_moved else self._waits_for, gain)
            self._chances.remember(key_of(candidate.settings), unseen)
        if is_moved and candidate.promise >= PROMISING and self.bench.score is rate:
            self._try_with_another(settings, trial)

    def _n_well(self, settings: Mapping[str, str]) -> int:
        """How often it went well: a batch that just fits may not fit the next time."""
        return sum(trial.state == "ok" for trial in self.bench.trials[key_of(settings)])

    def _try_with_another(self, settings: dict[str, str], trial: Trial) -> None:
        """Try settings whose gain may be hidden with what would show it.

        Half the kernel time gains nothing where launching them takes as long; then the step waits
        for its host, and what helps there promises more than it did before.
        """
        for one in self._order(settings, trial):
            is_apart = {*one.settings, *one.lever.instead_of}.isdisjoint(settings)
            key = key_of(one.settings)
            is_open = key not in self._considered or self._chances.has(key)
            if is_apart and is_open and not one.not_tried and one.promise >= PROMISING:
                if self.bench.time_left() > self.forecast.try_s(one, self.best):
                    both = {**settings, **one.settings}
                    self._decide(one, both, self.bench.measure(both), is_together=True)
                return

    @property
    def _waits_for(self) -> Bottleneck:
        return bottleneck(self._best_trial)

    def _moves_bottleneck(self, trial: Trial) -> bool:
        return bottleneck(trial) != self._waits_for

    def _is_open(self, candidate: Candidate, gain: Interval, n_looks: int) -> bool:
        """Whether the best is to be measured again, and the candidate if that does not settle it.

        Once for any gain that drift may be. Further looks, at levers that promise much, are for
        machines on which one start differs from the next by as much as levers bring.
        """
        if n_looks == 1:
            is_drift = gain.low < BEYOND_DRIFT
            return is_drift and gain.value > self._worth(candidate) and gain.high > 1.0
        is_settled = gain.low > 1.0 or gain.high < 1.0 + candidate.promise
        return (
            not is_settled
            and candidate.promise >= PROMISING
            and self.bench.time_left() > 2 * self.forecast.try_s(candidate, self.best)
        )

    def _worth(self, candidate: Candidate) -> float:
        """The gain from which on a second look is worth its time; noise may hide it."""
        is_noisy = candidate.promise >= PROMISING and self.bench.between().spread > PROMISING / 2
        return 1.0 - PROMISING if is_noisy else WORTH_A_SECOND_LOOK

    def _check(
        self, lever: Lever, settings: Mapping[str, str], trial: Trial
    ) -> tuple[RungState, str, Verdict | None]:
        """Whether a trial can be a rung at all."""
        if trial.state != "ok":
            return trial.state, trial.reason, None
        if lever.name in trial.failed:
            return "no effect", f"it could not be applied: {trial.failed[lever.name]}", None
        if lever.name not in trial.done:
            return "no effect", "it found nothing to change", None
        if self.bench.score(trial) is None:
            return "no effect", f"its trial was too short to tell its {self.objective.name}", None
        return self.judged(settings, trial)

    def _why(self, gain: Interval, kept: bool, settings: Mapping[str, str], lever: Lever) -> str:
        what = f"{self.objective.told(gain)}{self._with_others(settings, lever)}"
        value = settings[lever.name]
        if any(r.gain and (r.lever, r.value) == (lever.name, value) for r in self.rungs):
            what += ", tried again"
        if kept:
            return what
        return f"{what}: {self.objective.worse if gain.high < 1.0 else 'inside the noise'}"

    def _with_others(self, settings: Mapping[str, str], lever: Lever) -> str:
        together = sorted(set(settings) - set(self.best) - {lever.name})
        return f", together with {', '.join(together)}" if together else ""
