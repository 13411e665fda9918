"""The host waits for the device in the middle of the step, to read a value of it.

While it waits it launches nothing, and the device runs dry afterwards. What that costs is seen in a
profile, as idle time behind a wait; without one it is known where the device waits for its host:
then it is the time that the calls take.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from hotlap.doctor.cure import place, places, without
from hotlap.doctor.habits import Call
from hotlap.doctor.inside.calls import BARRIERS
from hotlap.doctor.inside.calls import SYNCS as READS
from hotlap.doctor.rule import Case, training_rule
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.levers.common.workload import Site
from hotlap.records.finding import Finding
from hotlap.records.profile import Site as ProfiledSite
from hotlap.wording import times

NAME = "syncs"
SYNCS = (*(f"Tensor.{name}" for name in READS), "Tensor.to")


def check(training: Training, case: Case, limits: Thresholds) -> Iterator[Finding]:
    """Calls that read a value of the device, by line; those of libraries as a profile has them."""
    calls = training.calls(*SYNCS)
    often = [call for call in calls if training.per_step([call]) >= limits.least_per_step]
    idle_s = case.kernels.idle().get("sync", 0.0) if case.kernels else None
    hidden = _hidden(training, case, limits) if not often else []
    if not often and not hidden:
        return
    sites = [call.site for call in often] or [Site(one.file, one.line) for _, one in hidden]
    n_times = training.per_step(often) or sum(n for n, _ in hidden)
    yield Finding(
        NAME,
        "advice",
        f"the host waits for the device {times(n_times)} a step",
        tuple(f"{call.name} at {place(call.site)}" for call in often[:5])
        or tuple(
            f"{times(n)} a step below {place(site)}"
            for site, (n, _) in zip(sites[:5], hidden, strict=False)
        ),
        _gain(training, often, idle_s),
        f"{places(sites)}: keep values on the device, read them every hundred steps or so",
    )


def _hidden(training: Training, case: Case, limits: Thresholds) -> list[tuple[float, ProfiledSite]]:
    """Waits inside of libraries that cost something: how often, and the user's line above them.

    Those that the script asks for, and copies of batches, have rules of their own.
    """
    kernels = case.kernels
    if kernels is None or not kernels.is_on_device:
        return []
    if kernels.share(kernels.idle().get("sync", 0.0)) < limits.least_call_share:
        return []
    asked = {_line(call.site.file, call.site.line) for call in training.calls(*BARRIERS)}
    asked |= {_line(file.path, node.lineno) for file, node in training.script.copies()}
    return [
        (one.calls, one.site)
        for one in kernels.rank.syncs
        if one.site is not None
        and one.calls >= limits.least_per_step
        and _line(one.site.file, one.site.line) not in asked
    ]


def _line(file: str, line: int) -> tuple[str, int]:
    """A profile names files as they are seen from here."""
    return os.path.abspath(file), line


def _gain(training: Training, often: list[Call], idle_s: float | None) -> float | None:
    if idle_s is not None and training.is_on_gpu:
        return without(min(1.0, idle_s / training.step.mean))
    return without(training.share_of(often)) if training.workload.waits_for_host else None


RULE = training_rule(NAME, check)
