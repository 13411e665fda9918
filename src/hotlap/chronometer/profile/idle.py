"""When the device stood idle, and what the host did meanwhile.

device   ####......####          a gap, until the next kernel starts
host     [next(loader)]          data: the host was in the loader for that part of the gap
host  [synchronize]              sync: the host had waited for the device until the gap began,
                                 so that nothing was queued behind it
host     [gloo, barrier]         collective: the host waited for other ranks
host     python python           launch: all else, the host was not fast enough
"""

from __future__ import annotations

from hotlap.chronometer.profile.intervals import Intervals, gaps, length, overlap, union
from hotlap.chronometer.profile.lines import SYNC_CALLS
from hotlap.chronometer.profile.trace import Trace
from hotlap.chronometer.profile.work import Window
from hotlap.records.profile import Idle

HOST_COLLECTIVES = ("gloo:", "mpi:", "c10d::barrier")
"""Those that the host itself waits in; one of NCCL's is a kernel, and no idle time."""
SLACK_US = 20.0
"""A host that waited comes back a little after the device has ended its last kernel."""


def find_idle(trace: Trace, window: Window) -> Idle | None:
    """Seconds a step without a kernel, by cause; None on a CPU."""
    if not window.is_device:
        return None
    busy = union((work.event.start, work.event.end) for work in window.works)
    idle = gaps(busy, window.begin, window.end)
    loading = _spans(trace, "enumerate(DataLoader)")
    ranks = _spans(trace, *HOST_COLLECTIVES)
    waits = _sync_ends(trace)
    data = sync = collective = launch = 0.0
    for gap in idle:
        in_data = length(overlap([gap], loading))
        in_ranks = min(length(overlap([gap], ranks)), length([gap]) - in_data)
        rest = length([gap]) - in_data - in_ranks
        data, collective = data + in_data, collective + in_ranks
        if any(begin < gap[0] <= end + SLACK_US and end < gap[1] for begin, end in waits):
            sync += rest
        else:
            launch += rest
    scale = 1e-6 / window.n_steps
    total, whole = length(idle), window.end - window.begin
    return Idle(
        total_s=total * scale,
        share=total / whole if whole else 0.0,
        data_s=data * scale,
        sync_s=sync * scale,
        collective_s=collective * scale,
        launch_s=launch * scale,
    )


def _spans(trace: Trace, *prefixes: str) -> Intervals:
    return union(
        (event.start, event.end)
        for event in trace.events
        if event.category in ("user_annotation", "cpu_op") and event.name.startswith(prefixes)
    )


def _sync_ends(trace: Trace) -> Intervals:
    """When the host waited for the device: by a call for it, or in a copy to the host."""
    to_host = {
        event.args.get("correlation")
        for event in trace.events
        if event.category == "gpu_memcpy" and "DtoH" in event.name and "Pageable" in event.name
    }
    return [
        (event.start, event.end)
        for event in trace.events
        if event.category == "cuda_runtime"
        and (event.name in SYNC_CALLS or event.args.get("correlation") in to_host)
    ]
