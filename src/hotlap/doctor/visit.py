"""Run a command for some steps and bring back all that rules look at.

The command runs here, as it would under `hotlap time --steps N`, with the levers' watcher and the
doctor's own inside. How it ends is data: a command that fails or does not train is a finding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hotlap.chronometer.launch import Outcome, TimeRequest, time_command, why_empty
from hotlap.chronometer.merge import training_ranks
from hotlap.chronometer.profile.collect import make_profile
from hotlap.chronometer.profile.roof import Roofs
from hotlap.chronometer.profile.window import Orders
from hotlap.doctor.habits import Habits, read_habits
from hotlap.doctor.kernels import kernels_of
from hotlap.doctor.script import read_script, scripts_of
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.errors import RecordError
from hotlap.levers.common.inside import Orders as LeverOrders
from hotlap.levers.common.workload import (
    phases_of,
    read_events,
    waits_for_host,
    workload_from,
)
from hotlap.machine.host import cpu_flags
from hotlap.records.profile import Profile
from hotlap.records.rank import RankRecord
from hotlap.records.run import Run

INSIDE = "hotlap.doctor.inside"


@dataclass(frozen=True, slots=True)
class Visit:
    """What came of a command."""

    run: Run
    what_was_seen: str
    """Of a command that made no step: what it did instead."""
    training: Training | None
    """None where no step was measured."""
    profile: Profile | None = None
    """Of a second run; None where none was made."""
    asked_by: int = 0
    """The signal by which somebody wanted it to end; 0 where nobody did."""


def visit_command(
    command: tuple[str, ...], runs_dir: Path, n_steps: int, n_warmup: int | None = None
) -> Visit:
    """Run it; the Run is kept like any other."""
    orders = LeverOrders().to_environment()
    orders["HOTLAP_INSTALL"] += f",{INSIDE}"
    outcome = time_command(TimeRequest(command, runs_dir, n_steps, n_warmup, environment=orders))
    return read_visit(outcome)


def profile_command(command: tuple[str, ...], runs_dir: Path) -> tuple[Profile, int]:
    """Run it again for a look at its kernels; and the signal that asked for its end.

    In another process than the one that was measured: a profiler makes steps longer, and may end a
    process that it does not get on with. What it prints, it has printed before.
    """
    orders = Orders(ends_run=True).to_environment()
    request = TimeRequest(command, runs_dir, environment=orders, is_silent=True)
    outcome = time_command(request)
    return make_profile(outcome.folder, outcome.run, Roofs()), outcome.asked_by


def with_profile(visit: Visit, profile: Profile, asked_by: int = 0) -> Visit:
    """A Visit with the profile of a second run, which knows better whether the device waits.

    A host that is held up in every step, by a copy say, never runs ahead of its device: from
    outside that looks as if the device were waiting for it.
    """
    training = visit.training
    if training is not None and training.workload.waits_for_host:
        step_s = training.step.mean
        kernels = kernels_of(profile, step_s, step_s * training.share("data"), None)
        if kernels is not None and kernels.is_on_device:
            waits = kernels.share(sum(kernels.idle().values())) >= Thresholds().least_idle_share
            workload = replace(training.workload, waits_for_host=waits)
            training = replace(training, workload=workload)
    return replace(visit, training=training, profile=profile, asked_by=asked_by)


def read_visit(outcome: Outcome) -> Visit:
    """From what a Run left on disk."""
    seen, training = why_empty(outcome), _training(outcome.run, outcome.folder)
    return Visit(outcome.run, seen, training, asked_by=outcome.asked_by)


def _training(run: Run, folder: Path) -> Training | None:
    if run.step_s is None:
        return None
    events = read_events(folder)
    habits = read_habits(events.seen) or Habits()
    ranks = _ranks(folder)
    n_cpus = run.machine.get("n_cpus_allocated") or 1
    workload = workload_from(events, phases_of(run), n_cpus, run.world_size or 1, cpu_flags())
    workload = replace(workload, waits_for_host=waits_for_host(ranks))
    script = read_script((*habits.files, *scripts_of(run.command)))
    return Training(run, run.step_s, workload, habits, script, ranks)


def _ranks(folder: Path) -> tuple[RankRecord, ...]:
    try:
        records = [RankRecord.read(path) for path in sorted(folder.glob("rank-*.json"))]
    except RecordError:
        return ()
    return tuple(training_ranks(records)[0])
