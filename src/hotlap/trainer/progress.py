"""What is told while a training goes on: lines on rank 0, and TensorBoard where it is asked for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from hotlap.chronometer.clock import now_ns
from hotlap.errors import UsageError
from hotlap.trainer.checkpoint import Place
from hotlap.trainer.metrics import Figures


class Progress:
    """Says how far the training is, how fast, and when it will be done."""

    def __init__(self, is_first: bool, n_steps: int, unit: str) -> None:
        self._is_first, self._n_steps, self._unit = is_first, n_steps, unit
        self._paused_ns = 0
        self.begin(0)

    def begin(self, step: int) -> None:
        """The clock runs from here, after so many steps."""
        self._last_ns, self._last_step = now_ns(), step

    def pause(self) -> None:
        """The clock stands still until a validation is told: its time is not the training's."""
        self._paused_ns = now_ns()

    def say(self, text: str) -> None:
        """A line, once for all ranks."""
        if self._is_first:
            print(text, file=sys.stderr, flush=True)

    def tell(self, place: Place, lr: float, figures: Figures) -> dict[str, float]:
        """Say where the training is; the figures that a log keeps."""
        seconds = max((now_ns() - self._last_ns) / 1e9, 1e-9)
        step_s = seconds / max(place.step - self._last_step, 1)
        rate = figures.n / seconds
        self.begin(place.step)
        left = duration((self._n_steps - place.step) * step_s)
        self.say(
            f"epoch {place.epoch + 1}  step {place.step}/{self._n_steps}  "
            f"loss {figures.loss:.4f}{self._accuracy(figures, ' of its batch')}  lr {lr:.3g}  "
            f"{rate:,.0f} {self._unit}/s  {left} left"
        )
        return {"loss": figures.loss, "lr": lr, f"{self._unit}_per_s": rate}

    def tell_validation(self, place: Place, figures: Figures) -> dict[str, float]:
        """Say what a validation came to, and let the clock run again."""
        epoch = place.epoch + bool(place.batch)
        accuracy = self._accuracy(figures)
        self.say(f"epoch {epoch}  validation loss {figures.loss:.4f}{accuracy}")
        self._last_ns += now_ns() - self._paused_ns
        found = {"loss": figures.loss}
        if self._unit == "images":
            found |= {"top1": figures.top1, "top5": figures.top5}
        return found

    def _accuracy(self, figures: Figures, of: str = "") -> str:
        """In a training the steps between two lines are not looked at, but for their loss."""
        if self._unit != "images":
            return ""
        return f"  top-1 {figures.top1:.2%}  top-5 {figures.top5:.2%}{of}"


def duration(seconds: float) -> str:
    """Hours and minutes, or minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


class Log:
    """Figures for programs: a line of JSON each in `log.jsonl`, and TensorBoard where it is wanted.

    A training that was interrupted repeats the steps since its checkpoint, and their lines: the
    last line of a step is the one that counts. Ranks but the first write nothing.
    """

    NAME = "log.jsonl"

    def __init__(self, folder: Path, is_first: bool, has_tensorboard: bool) -> None:
        self._stream: Any = None
        self._writer: Any = None
        if not is_first:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._stream = (folder / self.NAME).open("a", encoding="utf-8")
        if has_tensorboard:
            self._writer = _summary_writer(folder / "tensorboard")

    def write(self, step: int, part: str, figures: dict[str, float]) -> None:
        """Keep figures of a step."""
        if self._stream is not None:
            self._stream.write(json.dumps({"step": step, "part": part, **figures}) + "\n")
            self._stream.flush()
        if self._writer is not None:
            for name, value in figures.items():
                self._writer.add_scalar(f"{part}/{name}", value, step)

    def close(self) -> None:
        """Write what is left."""
        for one in (self._stream, self._writer):
            if one is not None:
                one.close()


def _summary_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UsageError(
            "output.tensorboard is true; the package tensorboard is not installed"
        ) from None
    return SummaryWriter(str(folder))
