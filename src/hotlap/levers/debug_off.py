"""Debugging off: what a script or its environment has left switched on to find an error.

When: anomaly detection is on (it follows every operation and looks for NaN in every gradient), or
`CUDA_LAUNCH_BLOCKING` and its like are set. Also `emit_nvtx`, `emit_itt` and CUDA's sync debug
mode, where the script switches them on. Costs the messages they give when something is wrong.
Changes nothing of the maths. Deterministic algorithms are no debugging and stay.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

from hotlap.levers.common.edits import Edit, change_arguments, set_environment, tell
from hotlap.levers.common.later import report_once
from hotlap.levers.common.lever import Decision, Lever, one_of
from hotlap.levers.common.process import Process, user_site
from hotlap.levers.common.workload import Seen, Workload

OFF = {
    "CUDA_LAUNCH_BLOCKING": "0",
    "AMD_SERIALIZE_KERNEL": "0",
    "TORCH_SHOW_CPP_STACKTRACES": "0",
    "TORCH_DISTRIBUTED_DEBUG": "OFF",
    "NCCL_DEBUG": "WARN",
}
IS_OFF = {"", "0", "off", "false", "warn", "version"}
CHANGED = "HOTLAP_DEBUG_OFF"
"""Names the variables that this lever changed, for the process to report."""


def apply(torch: Any, value: str, process: Process) -> None:
    """Switch off what is on, and keep the script from switching it on."""
    for name in filter(None, os.environ.get(CHANGED, "").split(",")):
        process.did(f"{name} is {os.environ.get(name)}")
    _keep_anomaly_off(torch, process)
    did_once = report_once(process)
    for name in ("emit_nvtx", "emit_itt"):
        kind = getattr(torch.autograd.profiler, name)
        process.replace(kind, "__enter__", _disabled(kind.__enter__, name, did_once))
    set_mode = torch.cuda.set_sync_debug_mode
    process.replace(torch.cuda, "set_sync_debug_mode", _without_mode(set_mode, did_once))


def _keep_anomaly_off(torch: Any, process: Process) -> None:
    """`detect_anomaly` and `set_detect_anomaly` both end in this function."""
    original, did_once = torch.set_anomaly_enabled, report_once(process)

    @functools.wraps(original)
    def set_anomaly_enabled(enabled: bool, check_nan: bool = True) -> None:
        if enabled:
            did_once(f"anomaly detection stays off{_place()}")
        original(False, check_nan)

    process.replace(torch, "set_anomaly_enabled", set_anomaly_enabled)


def _disabled(enter: Any, name: str, did_once: Callable[[str], None]) -> Any:
    @functools.wraps(enter)
    def __enter__(self: Any) -> Any:
        if self.enabled:
            self.enabled = False
            did_once(f"{name} stays off{_place()}")
        return enter(self)

    return __enter__


def _without_mode(set_mode: Any, did_once: Callable[[str], None]) -> Any:
    @functools.wraps(set_mode)
    def set_sync_debug_mode(debug_mode: int | str) -> None:
        if debug_mode in (0, "default"):
            set_mode(debug_mode)
        else:
            did_once(f"CUDA's sync debug mode stays off{_place()}")

    return set_sync_debug_mode


def _place() -> str:
    site = user_site()
    return f", which {os.path.basename(site[0])}:{site[1]} switches on" if site else ""


def _left_on() -> tuple[str, ...]:
    """Variables of the environment that are set to something slow."""
    return tuple(name for name in OFF if os.environ.get(name, "").lower() not in IS_OFF)


def environment(value: str, workload: Workload) -> Mapping[str, str]:
    """Off, for those that are on."""
    names = _left_on()
    return {**{name: OFF[name] for name in names}, CHANGED: ",".join(names)} if names else {}


def applies(workload: Workload) -> Decision:
    """Something is on."""
    names = _left_on()
    if names:
        return Decision(True, f"{', '.join(names)} is set")
    if workload.flags.get("anomaly"):
        return Decision(True, "anomaly detection is on")
    return Decision(False, "nothing that is there for debugging was seen to be on")


def edit(value: str, workload: Workload) -> tuple[Edit, ...]:
    """Off where it is switched on, and in the environment."""
    edits = [_not_switched_on(one) for one in workload.anomalies]
    if workload.flags.get("anomaly") and not edits:
        edits.append(change_arguments(None, "set_detect_anomaly", mode="False"))
    names = _left_on()
    if names:
        edits.append(set_environment(**{name: OFF[name] for name in names}))
    return tuple(edits)


def _not_switched_on(anomaly: Seen) -> Edit:
    call = anomaly.facts["call"]
    if call == "set_detect_anomaly":
        return change_arguments(anomaly.site, call, mode="False")
    return tell(anomaly.site, "leave torch.autograd.detect_anomaly() out here")


LEVER = Lever(
    name="debug_off",
    summary="anomaly detection and other debugging aids are off",
    changes="nothing",
    risk="safe",
    phases=("forward", "backward", "optimizer", "other"),
    saves=lambda workload: 0.5,
    values=lambda workload: ("on",),
    takes=one_of("on"),
    applies=applies,
    apply=apply,
    environment=environment,
    edit=edit,
)
