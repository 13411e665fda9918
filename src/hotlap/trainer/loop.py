"""The training loop, from the first step to the last.

for each epoch
    for each update of it     forward, backward, optimizer (update.py)
        now and then          a line of progress, which alone waits for the device
        every so often        a checkpoint (keeper.py)
        asked to leave        a checkpoint, and an exit code that says: start it again
    validation
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hotlap.chronometer.collect import ASKED_TO_LEAVE
from hotlap.errors import UsageError
from hotlap.trainer.build import WITH_CUDA_GRAPHS, Training
from hotlap.trainer.checkpoint import Place
from hotlap.trainer.export import export_weights
from hotlap.trainer.keeper import Keeper
from hotlap.trainer.metrics import Metrics
from hotlap.trainer.progress import Log, Progress
from hotlap.trainer.signals import Agreement, StopSignals
from hotlap.trainer.update import Batch, update
from hotlap.trainer.validate import validate

TEST_VALIDATION_BATCHES = 20
LOADING, STEP = "loading data", "in the step"
CHECKPOINT, VALIDATION = "writing a checkpoint", "validating"
"""Sections of the loop, for the watch over ranks that stand still."""


def train(t: Training) -> int:
    """Train to the end, or until asked to leave; the exit code."""
    output = t.settings.output
    n_steps = planned_steps(t)
    end = t.settings.loop.test_steps or n_steps
    progress = Progress(t.launch.rank == 0, end, t.unit)
    keeper = Keeper(t, progress)
    place = keeper.resume()
    progress.begin(place.step)
    log = Log(Path(output.folder), t.launch.rank == 0, output.tensorboard)
    has_graphs = t.settings.compute.compile in WITH_CUDA_GRAPHS
    seen = Metrics(t.device, is_memory_reused=has_graphs)
    with StopSignals() as signals:
        agreement = Agreement(t.cpu_group, place.step)
        while place.step < end:
            t.model.train()
            for micro_batches in updates(t, place):
                number = place.step + 1
                is_told = number % output.log_steps == 0 or number == end
                update(t, micro_batches, place.step, n_steps, seen, counts_hits=is_told)
                place = Place(number, place.epoch, place.batch + len(micro_batches))
                if is_told:
                    stop_if_bad(t, seen, keeper)
                    figures = seen.read(t.figures_group)
                    log.write(place.step, "train", progress.tell(place, t.lr, figures))
                leave, is_time, is_writing = agreement.ask(
                    place.step, bool(signals.received), keeper.is_time(), keeper.is_writing()
                ) or (False, False, True)
                is_due = leave or is_time or keeper.is_due_by_steps(place.step)
                if is_due or not is_writing:
                    t.watch.at(CHECKPOINT, place.step, is_long=True)
                if not is_writing:
                    keeper.finish()
                if is_due:
                    stop_if_bad(t, seen, keeper)  # such weights are not worth keeping
                    keeper.save(place)
                if leave:
                    keeper.finish()
                    progress.say(f"asked to leave: the training stands at step {place.step}")
                    return ASKED_TO_LEAVE
                if place.step == end:
                    break
            else:
                place = Place(place.step, place.epoch + 1)
            if t.validation is not None and is_validation_due(t, place, end):
                t.watch.at(VALIDATION, place.step, is_long=True)
                progress.pause()
                figures = validate(t, t.validation, validation_batches(t))
                log.write(place.step, "validation", progress.tell_validation(place, figures))
    t.watch.at(CHECKPOINT, place.step, is_long=True)
    keeper.save(place)
    keeper.finish()
    if not t.settings.loop.test_steps:
        export_weights(t, Path(output.folder))
    log.close()
    return 0


def planned_steps(t: Training) -> int:
    """Updates of the whole training, which the learning rate goes by, also in a test of some."""
    loop = t.settings.loop
    per_epoch = [t.n_batches(epoch) // loop.accumulate for epoch in range(max(loop.epochs, 1))]
    if not all(per_epoch):
        raise UsageError(_too_few(t))
    return loop.steps or sum(per_epoch)


def _too_few(t: Training) -> str:
    return (
        f"loop.batch is {t.settings.loop.batch}: the data have too few samples for one update "
        f"of {t.settings.loop.accumulate} such batches on {t.layout.n_data} ranks"
    )


def updates(t: Training, place: Place) -> Iterator[list[Batch]]:
    """The batches that are left of an epoch, as many at a time as make one update."""
    together: list[Batch] = []
    step = place.step + 1
    if t.sizes(place.epoch) != t.sizes(max(place.epoch - 1, 0)):
        t.watch.expect_slow_steps()
    t.watch.at(LOADING, step)
    for batch in t.feed.epoch(place.epoch, place.batch, **t.sizes(place.epoch)):
        together.append(batch)
        if len(together) == t.settings.loop.accumulate:
            t.watch.at(STEP, step)
            yield together
            together = []
            step += 1
            t.watch.at(LOADING, step)


def stop_if_bad(t: Training, seen: Metrics, keeper: Keeper) -> None:
    """A loss that is no number ends the training."""
    step = seen.bad_step(t.figures_group)
    if step:
        keeper.finish()
        newest = keeper.newest()
        good = f"the last good checkpoint is {newest}" if newest else "there is no checkpoint"
        raise UsageError(f"the loss of step {step} ({where(t, step)}) is no number; {good}")


def where(t: Training, step: int) -> str:
    """The epoch and the batch of a step."""
    loop = t.settings.loop
    epoch, left = 0, step - 1
    while left >= (n := max(t.n_batches(epoch) // loop.accumulate, 1)):
        epoch, left = epoch + 1, left - n
    return f"epoch {epoch + 1}, batch {left * loop.accumulate + 1}"


def is_validation_due(t: Training, place: Place, end: int) -> bool:
    """Every so many epochs, and at the end."""
    every = t.settings.loop.validate_every
    return place.step == end or (every > 0 and place.epoch % every == 0)


def validation_batches(t: Training) -> int:
    """How many batches; 0 for all."""
    loop = t.settings.loop
    return TEST_VALIDATION_BATCHES if loop.test_steps else loop.validate_batches
