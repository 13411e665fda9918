"""What limits a step: computing, memory, data, copies, ranks, or the host.

From the phases of the step alone it is known how long it waits for data and for copies. A profile
tells the rest: what kernels a device, or operators a CPU, are busy with, each class being bound by
computing or by memory as its FLOPs and bytes say; and what the device waits for when it is idle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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
    found = list(_by_kernels(training, kernels, skew) if kernels else _by_phases(training))
    # Kernels of several streams run side by side: together they can take longer than the step.
    whole = max(1.0, sum(one.share for one in found))
    parts = [replace(one, share=one.share / whole) for one in found]
    return tuple(sorted((p for p in parts if p.share >= LEAST_SHARE), key=lambda p: -p.share))


def _by_phases(training: Training) -> Iterator[Limit]:
    data, copies = training.share("data"), training.share("transfer")
    yield Limit("data", data, "the loop waits for a batch")
    yield Limit("host to device", copies, "batches are copied")
    known = "forward, backward and optimizer; a profile tells what bounds them"
    yield Limit("computing", training.share("forward", "backward", "optimizer"), known)
    yield Limit("host", training.share("other"), "other code of the loop")


def _by_kernels(training: Training, kernels: Kernels, skew: Skew | None) -> Iterator[Limit]:
    classes = [one for one in kernels.rank.classes if one.name != "collective"]
    for name, bound in (("computing", "compute"), ("memory bandwidth", "memory")):
        yield _busy(name, kernels, [one for one in classes if one.bound == bound])
    yield _busy("kernels of unknown bound", kernels, [one for one in classes if not one.bound])
    if kernels.is_on_device:
        for cause, seconds in kernels.idle().items():
            yield Limit(IDLE[cause][0], kernels.share(seconds), IDLE[cause][1])
    else:
        data = training.share("data")
        outside = kernels.share(kernels.rank.outside_s or 0.0)
        yield Limit("data", data, "the loop waits for a batch")
        yield Limit("host", max(0.0, outside - data), "Python runs, and no operator of torch")
    yield from _communication(kernels, skew)


def _busy(name: str, kernels: Kernels, classes: list[ClassTime]) -> Limit:
    seconds = sum(one.seconds for one in classes)
    named = [f"{one.name} {100 * kernels.share(one.seconds):.0f} %" for one in classes]
    return Limit(name, kernels.share(seconds), ", ".join(named))


def _communication(kernels: Kernels, skew: Skew | None) -> Iterator[Limit]:
    seen = kernels.rank.communication
    if seen is None:
        return
    share = kernels.share(seen.exposed_s)
    waiting = skew.skew_s / (skew.skew_s + skew.transfer_s) if skew and skew.skew_s else 0.0
    late = f", rank {skew.straggler} is late" if skew and skew.straggler is not None else ""
    yield Limit("communication", share * (1 - waiting), "ranks exchange and compute nothing")
    yield Limit("imbalance", share * waiting, f"ranks wait for others to come{late}")
