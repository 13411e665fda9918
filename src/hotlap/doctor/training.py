"""A short run of a command, as rules look at it: its Run, its Workload, its habits, its ranks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hotlap.doctor.habits import Call, Habits
from hotlap.doctor.script import Script
from hotlap.levers.common.workload import Workload
from hotlap.records.rank import RankRecord
from hotlap.records.run import Run, Spread


@dataclass(frozen=True, slots=True)
class Training:
    """A command that made steps, which were measured."""

    run: Run
    step: Spread
    workload: Workload
    habits: Habits
    script: Script
    ranks: tuple[RankRecord, ...] = ()

    @property
    def is_on_gpu(self) -> bool:
        """Whether the model was on one when it was first called."""
        return self.workload.device == "cuda"

    def share(self, *phases: str) -> float:
        """The part of the step that these phases take."""
        return self.workload.share(*phases)

    def per_step(self, calls: Iterable[Call]) -> float:
        """How often these calls are made in a step; the first one is not counted."""
        return sum(call.n for call in calls) / max(1, self.habits.n_steps - 1)

    def share_of(self, calls: Iterable[Call]) -> float:
        """The part of the step that these calls take on the host."""
        total_s = sum(call.total_s for call in calls)
        return min(1.0, total_s / max(1, self.habits.n_steps - 1) / self.step.mean)

    def calls(self, *names: str) -> tuple[Call, ...]:
        """Those of functions with these names that were made while training, the costly first."""
        found = [c for c in self.habits.calls if c.name in names and c.in_training]
        return tuple(sorted(found, key=lambda call: -call.total_s))

    @property
    def samples_per_step(self) -> float | None:
        """Of all ranks."""
        if not self.run.samples_per_s or not self.run.steps_per_s:
            return None
        return self.run.samples_per_s / self.run.steps_per_s
