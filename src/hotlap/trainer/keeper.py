"""When a checkpoint is due, what goes into it, and how a training takes up from one."""

from __future__ import annotations

from pathlib import Path

import torch

from hotlap.chronometer.clock import now_ns
from hotlap.trainer import state
from hotlap.trainer.build import Training
from hotlap.trainer.checkpoint import Checkpoints, Place, Tensors, load, names_in, read_state
from hotlap.trainer.progress import Progress


class Keeper:
    """The checkpoints of a training."""

    def __init__(self, training: Training, progress: Progress) -> None:
        self._t, self._say = training, progress.say
        self._output = training.settings.output
        self._is_test = bool(training.settings.loop.test_steps)
        self._files = Checkpoints(
            Path(self._output.folder) / "checkpoints",
            self._output.keep_checkpoints,
            self._output.asynchronous,
            progress.say,
            training.writing_group,
        )
        self._last_ns, self._last_step = now_ns(), 0

    def is_time(self) -> bool:
        """Whether this rank's clock says that one is due."""
        minutes = self._output.checkpoint_minutes
        return bool(minutes) and now_ns() - self._last_ns > minutes * 60e9

    def is_due_by_steps(self, step: int) -> bool:
        """Whether one is due after this step."""
        every = self._output.checkpoint_steps
        return bool(every) and step % every == 0

    def save(self, place: Place) -> None:
        """Write one, unless there is one of this step; a test leaves none to go on from."""
        if place.step == self._last_step or self._is_test:
            return
        t = self._t
        facts = {
            "world_size": t.launch.world_size,
            "mesh": str(t.layout),
            "torch": torch.__version__,
        }
        self._files.save(place, self._tensors(), facts)
        self._last_ns, self._last_step = now_ns(), place.step

    def is_writing(self) -> bool:
        """Whether this rank has not yet written its part of the last one."""
        return self._files.is_writing()

    def finish(self) -> None:
        """Wait for the one that is being written, and make it valid. Called by all ranks."""
        self._files.finish()

    def newest(self) -> Path | None:
        """The newest good one."""
        return self._files.newest()

    def resume(self) -> Place:
        """Go on from the newest good one; from the start if there is none."""
        newest = self._files.newest() if self._output.resume and not self._is_test else None
        if newest is None:
            return Place()
        there, tensors = names_in(newest), self._tensors()
        wanted = {
            name: tensor
            for name, tensor in tensors.items()
            # Ranks that were not there when it was written keep the generators they have.
            if not name.startswith("random.") or name in there
        }
        group = self._t.writing_group
        load(newest, wanted, is_alone=group is None, group=group)
        found = read_state(newest)
        place = Place(found["step"], found["epoch"], found["batch"])
        self._put(wanted, place.step)
        self._last_step = place.step
        self._say(f"going on from {newest}: step {place.step}, epoch {place.epoch + 1}")
        return place

    def _tensors(self) -> Tensors:
        t = self._t
        tensors = state.model_tensors(t.bare) | state.optimizer_tensors(t.optimized, t.optimizer)
        if t.average is not None:
            tensors |= state.average_tensors(t.average)
        if t.arithmetic.scaler.is_enabled():
            tensors |= state.scaler_tensors(t.arithmetic.scaler)
        return tensors | state.random_tensors(t.launch.rank, t.device)

    def _put(self, tensors: Tensors, step: int) -> None:
        t = self._t
        state.put_model(t.bare, tensors)
        state.put_optimizer(t.optimized, t.optimizer, tensors)
        if t.average is not None:
            state.put_average(t.average, tensors, step)
        if t.arithmetic.scaler.is_enabled():
            state.put_scaler(t.arithmetic.scaler, tensors)
        if f"random.{t.launch.rank}.cpu" in tensors:
            state.put_random(t.launch.rank, t.device, tensors)
