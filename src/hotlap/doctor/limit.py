"""What limits a step: computing, memory, data, copies, ranks, or the host.

From the phases of the step alone it is known how long it waits for data and for copies. A profile
tells the rest: what kernels a device, or operators a CPU, are busy with, each class being bound by
computing or by memory as its FLOPs and bytes say; and what the device waits for when it is idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hotlap.doctor.kernels import Kernels
from hotlap.doctor.training import Training
from hotlap.records.finding import Limit
from hotlap.records.profile import ClassTime, Skew

LEAST_SHARE = 0.01
"""Of the step: smaller parts are not worth a line."""
IDLE = {
    "data": ("data", "the device waits for a batch"),
    "sync": ("synchronisation", "the device waits for a host that has waited for it"),
    "collective": ("communication", "the device waits for a host that waits for other ranks"),
    "launch": ("host", "the device waits for kernels to be launched"),
}


def limits_of(training: Training, kernels: Kernels | None, skew: Skew | None) -> tuple[Limit, ...]:
    """The parts of a step, the largest first."""
    if kernels is None:
        parts = list(_by_phases(training))
    else:
        parts = list(_by_kernels(training, kernels, skew, 1.0))
        whole = sum(one.share for one in parts)
        if whole > 1:
            # Kernels of several streams run side by side, and a profiled kernel may take longer
            # than others: together they can take longer than the step.
            parts = list(_by_kernels(training, kernels, skew, whole))
    return tuple(sorted((p for p in parts if p.share >= LEAST_SHARE), key=lambda p: -p.share))


def _by_phases(training: Training) -> Iterator[Limit]:
    data, copies = training.share("data"), training.share("transfer")
    yield Limit("data", data, "the loop waits for a batch")
    yield Limit("host to device", copies, "batches are copied")
    known = "forward, backward and optimizer; a profile tells what bounds them"
    yield Limit("computing", training.share("forward", "backward", "optimizer"), known)
    yield Limit("host", training.share("other"), "other code of the loop")


def _by_kernels(
    training: Training, kernels: Kernels, skew: Skew | None, whole: float
) -> Iterator[Limit]:
    """Shares of a whole that may be more than the step."""

    def share(seconds: float) -> float:
        return kernels.share(seconds) / whole

    classes = [one for one in kernels.rank.classes if one.name != "collective"]
    for name, bound in (("computing", "compute"), ("memory bandwidth", "memory")):
        yield _busy(name, share, [one for one in classes if one.bound == bound])
    yield _busy("kernels of unknown bound", share, [one for one in classes if not one.bound])
    if kernels.is_on_device:
        for cause, seconds in kernels.idle().items():
            yield Limit(IDLE[cause][0], share(seconds), IDLE[cause][1])
        yield Limit("not in the profile", share(kernels.beyond_s()), _beyond(kernels))
    else:
        data = training.share("data") / whole
        outside = share(kernels.rank.outside_s or 0.0)
        yield Limit("data", data, "the loop waits for a batch")
        yield Limit("host", max(0.0, outside - data), "Python runs, and no operator of torch")
    yield from _communication(kernels, skew, share)


def _busy(name: str, share: Callable[[float], float], classes: list[ClassTime]) -> Limit:
    shares = {one.name: share(one.seconds) for one in classes}
    named = [f"{kind} {100 * part:.0f} %" for kind, part in shares.items() if part >= 0.005]
    return Limit(name, sum(shares.values()), ", ".join(named))


def _beyond(kernels: Kernels) -> str:
    profiled_ms = 1e3 * (kernels.rank.step_s or 0.0)
    return f"profiled steps took {profiled_ms:.3g} ms: clocks fall, or some steps do more"


def _communication(
    kernels: Kernels, skew: Skew | None, share: Callable[[float], float]
) -> Iterator[Limit]:
    seen = kernels.rank.communication
    if seen is None:
        return
    exposed = share(seen.exposed_s)
    waiting = skew.waiting_share(kernels.rank.rank) if skew else 0.0
    late = f", rank {skew.straggler} is late" if skew and skew.straggler is not None else ""
    yield Limit("communication", exposed * (1 - waiting), "ranks exchange and compute nothing")
    yield Limit("imbalance", exposed * waiting, f"ranks wait for others to come{late}")
