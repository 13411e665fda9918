"""Levers with which trials end badly: what the ladder has to show as states."""

from __future__ import annotations

from typing import Any

from hotlap.levers.common.lever import Decision, Lever


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


def _lever(name: str, apply: Any, *values: str) -> Lever:
    return Lever(
        name=name,
        summary=apply.__doc__,
        changes="nothing",
        risk="safe",
        phases=("data", "forward", "backward", "optimizer", "other"),
        saves=lambda workload: 0.1,
        values=lambda workload: values,
        applies=lambda workload: Decision(True, "it is a test"),
        edit=lambda value, workload: (),
        apply=apply,
    )


LEVERS = (
    _lever("dies", die, "SIGILL", "SIGSEGV"),
    _lever("fails", fail, "on"),
    _lever("idles", idle, "on"),
)
