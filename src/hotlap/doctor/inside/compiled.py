"""What torch.compile made: graphs, the places where they break, and what it compiled again."""

from __future__ import annotations

import sys
from typing import Any

from hotlap.doctor.inside.watch import Watch

MAX_TOLD = 20
MAX_LETTERS = 300


def install(watch: Watch) -> None:
    """At the end, read torch's own counters, if anything was compiled."""
    watch.facts["compiled"] = _read


def _read() -> dict[str, Any] | None:
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return None
    counters = utils.counters
    breaks = {str(reason): int(n) for reason, n in counters["graph_break"].items()}
    again = [one for one in utils.get_compilation_metrics() if one.recompile_reason]
    return {
        "n_graphs": int(counters["stats"]["unique_graphs"]),
        "breaks": {reason[:MAX_LETTERS]: n for reason, n in list(breaks.items())[:MAX_TOLD]},
        "n_again": len(again),
        "again_s": sum((one.duration_us or 0) for one in again) / 1e6,
        "again": [
            [one.co_filename, one.co_firstlineno, str(one.recompile_reason)[:MAX_LETTERS]]
            for one in again[:MAX_TOLD]
        ],
    }
