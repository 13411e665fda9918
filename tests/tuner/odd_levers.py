"""Levers with which trials end badly: what the ladder has to show as states."""

from __future__ import annotations

import os
from typing import Any

from hotlap.levers.common.lever import Decision, Lever

MENDED = "HOTLAP_TEST_MENDED"


def die(torch: Any, value: str, process: Any) -> None:
    """The process dies of a signal at its first training call."""

    def kill(module: Any, args: Any, kwargs: Any) -> None:
        import os
        import signal

        print("about to run an instruction that is not there", flush=True)
        os.kill(os.getpid(), getattr(signal, value))

    process.on_model(kill)


def fail(torch: Any, value: str, process: Any) -> None:
    """The lever itself raises."""
    raise RuntimeError("this torch is too old")


def idle(torch: Any, value: str, process: Any) -> None:
    """The lever finds nothing to change."""


def lean(torch: Any, value: str, process: Any) -> None:
    """The process dies unless another lever has set its variable: on some machines only."""
    if MENDED not in os.environ:
        die(torch, "SIGILL", process)
    else:
        process.did("it leans on what is mended")


def mend(torch: Any, value: str, process: Any) -> None:
    """The variable is there before Python starts."""
    process.did(f"{MENDED} is set")


def _lever(name: str, apply: Any, *values: str, **fields: Any) -> Lever:
    return Lever(
        name=name,
        summary=apply.__doc__,
        changes="nothing",
        risk="safe",
        phases=("data", "forward", "backward", "optimizer", "other"),
        saves=lambda workload: 0.05,  # too little for a second look at a rate
        values=lambda workload: values,
        applies=lambda workload: Decision(True, "it is a test"),
        edit=lambda value, workload: (),
        apply=apply,
        **fields,
    )


LEVERS = (
    _lever("dies", die, "SIGILL", "SIGSEGV"),
    _lever("fails", fail, "on"),
    _lever("idles", idle, "on"),
    _lever("leans", lean, "on", needs=("mends",)),
    _lever("mends", mend, "on", environment=lambda value, workload: {MENDED: value}),
)
