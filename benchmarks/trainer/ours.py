"""hotlap's trainer as one of the loops that take turns: the real `train`, with its real data.

Nothing of it is changed but where its batches come from: its own feed, made to wait between blocks.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

SRC = Path(__file__).resolve().parents[2] / "src"
sys.path.insert(0, str(SRC))

from hotlap.data.feed import Feed  # noqa: E402
from hotlap.distributed.launch import detect, start  # noqa: E402
from hotlap.trainer.build import build  # noqa: E402
from hotlap.trainer.loop import train  # noqa: E402
from hotlap.trainer.recipe import resolve  # noqa: E402
from hotlap.trainer.settings import TrainSettings  # noqa: E402
from hotlap.trainer.signals import StopSignals  # noqa: E402

# Only a main thread can listen for signals. To listen costs a step nothing; to be in another thread
# than the other loops does, on a CPU: memory comes from elsewhere.
StopSignals.SIGNALS = ()  # type: ignore[assignment]

Pace = Callable[[Iterable[Any]], Iterator[Any]]
NEVER = 10**9
"""Steps: the last block ends a training, not its length."""


class PacedFeed:
    """A feed whose batches come in turns."""

    def __init__(self, feed: Feed, pace: Pace) -> None:
        self._feed, self._pace = feed, pace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)

    def epoch(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        """As the feed's own."""
        return self._pace(self._feed.epoch(*args, **kwargs))


def settings_of(recipe: str, changes: Iterable[str], device: str, folder: str) -> TrainSettings:
    """A recipe's settings, for a training that only a benchmark ends."""
    return resolve(
        recipe,
        [
            f"loop.steps={NEVER}",
            "validate_every=0",
            f"compute.device={device}",
            f"output.folder={folder}",
            *changes,
        ],
    )


def run_trainer(settings: TrainSettings, pace: Pace) -> None:
    """Train until the benchmark is done."""
    with start(detect(os.environ), 60.0, device=settings.compute.device or "auto") as started:
        t = build(settings, started)
        t.feed = PacedFeed(t.feed, pace)  # type: ignore[assignment]
        train(t)
