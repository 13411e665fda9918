"""Have a model traced in a process of its own: this one never imports torch."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hotlap.errors import UsageError
from hotlap.planner.layers import Model
from hotlap.planner.trace import Request
from hotlap.records.codec import from_json, to_json

TIMEOUT_S = 300


def traced(request: Request) -> Model:
    """The model as data, or one sentence about why it could not be had."""
    with _ending_on_sigterm(), tempfile.TemporaryDirectory(prefix="hotlap-trace-") as folder:
        asked, answered = Path(folder, "request.json"), Path(folder, "result.json")
        asked.write_text(json.dumps(to_json(request)), encoding="utf-8")
        words = [sys.executable, "-m", "hotlap.planner.trace", str(asked), str(answered)]
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"MODEL: {request.factory} was not traced within {TIMEOUT_S} s; give its sizes "
                "instead"
            ) from None
        if not answered.exists():
            last = (done.stderr.strip().splitlines() or ["no output"])[-1][:200]
            raise UsageError(
                f"MODEL: {request.factory} could not be traced: its process ended with exit code "
                f"{done.returncode} ({last})"
            )
        result = json.loads(answered.read_text(encoding="utf-8"))
    if "error" in result:
        raise UsageError(result["error"])
    return from_json(Model, result["model"], "model")


@contextlib.contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Have SIGTERM raise: neither the process that traces nor its folder outlives this one then."""

    def end(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
