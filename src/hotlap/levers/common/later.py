"""Reports of a lever from functions that run long after its `apply`, such as those it replaced."""

from __future__ import annotations

from collections.abc import Callable

from hotlap.levers.common.process import Process


def reporter(process: Process) -> Callable[[str], None]:
    """`process.did` for the lever that is being applied now, to be called at any time."""
    lever = process.lever

    def did(what: str) -> None:
        process.as_lever(lever, process.did, what)

    return did


def report_once(process: Process) -> Callable[[str], None]:
    """The same, but each text is reported once: for what happens in every step."""
    did, reported = reporter(process), set[str]()

    def did_once(what: str) -> None:
        if what not in reported:
            reported.add(what)
            did(what)

    return did_once
