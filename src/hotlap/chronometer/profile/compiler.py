"""Graph breaks and recompiles: what torch.compile tells its loggers, caught on the way.

The loggers are switched on for us alone: a filter keeps what it hears from the handlers, unless
the user asked for it (TORCH_LOGS) as well.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

BREAK_LOGGERS = ("torch._dynamo.symbolic_convert", "torch._dynamo.convert_frame")
RECOMPILE_LOGGER = "torch._dynamo.guards"
MAX_REASON = 300

_BREAK = re.compile(r"in user code at ([^\n]+):(\d+)\s*\n\s*Graph Break Reason: (.+)", re.DOTALL)
_SKIP = re.compile(r'fall back to eager.*File "([^"]+)", line (\d+)', re.DOTALL)
_RECOMPILE = re.compile(r"Recompiling function (\S+) in (.+):(\d+)")
_GUARD = re.compile(r"^\s*-\s*(?:\d+/\d+:\s*)?(.+)$", re.MULTILINE)


def watch_compiler(torch: Any, write: Callable[..., None]) -> None:
    """Have every graph break and every recompile written to the log of the profile."""
    logging_state = torch._logging._internal.log_state
    for name, artifact in (
        *((name, "graph_breaks") for name in BREAK_LOGGERS),
        (RECOMPILE_LOGGER, "recompiles"),
    ):
        logger = torch._logging.getArtifactLogger(name, artifact)
        is_asked_for = logger.isEnabledFor(logging.DEBUG)
        logger.addFilter(_Catch(write, is_asked_for))
        logger.setLevel(logging.DEBUG)
    # Dynamo looks for the reason of a recompile only where this artifact is on.
    logging_state.enable_artifact("recompiles")


class _Catch(logging.Filter):
    def __init__(self, write: Callable[..., None], is_let_through: bool) -> None:
        super().__init__()
        self._write, self._is_let_through = write, is_let_through

    def filter(self, record: logging.LogRecord) -> bool:
        """Take note of a record; let it pass only to a user who wants it."""
        if record.levelno == logging.DEBUG:
            try:
                entry = parse(record.getMessage())
                if entry:
                    self._write(**entry)
            except Exception:
                return self._is_let_through
            return self._is_let_through
        return True


def _in_short(reason: str) -> str:
    """The line that names the cause, behind one that only says which bytecode met it."""
    lines = [line.strip() for line in reason.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("Encountered graph break"):
        return lines[1]
    return lines[0]


def parse(message: str) -> dict[str, Any]:
    """What a message of dynamo's says; empty where it is of another kind."""
    found = _BREAK.search(message)
    if found:
        file, line, reason = found.groups()
        reason = _in_short(reason)
        return {"graph_break": reason[:MAX_REASON], "file": file, "line": int(line)}
    found = _SKIP.search(message)
    if found:
        file, line = found.groups()
        reason = "the whole function falls back to eager"
        return {"graph_break": reason, "file": file, "line": int(line)}
    found = _RECOMPILE.search(message)
    if found:
        function, file, line = found.groups()
        guard = _GUARD.search(message)
        reason = guard.group(1).strip() if guard else "unknown"
        return {
            "recompile": reason[:MAX_REASON],
            "function": function,
            "file": file,
            "line": int(line),
        }
    return {}
