"""All settings of a training, checked when they are read.

Each part stands beside what it is for (model, data, optimizer, schedule, mesh); those of the loop
itself are here. A recipe is a TOML file of them: a table for each part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hotlap.data.settings import DataSettings
from hotlap.distributed.mesh import MeshSettings
from hotlap.errors import UsageError
from hotlap.models.settings import ModelSettings
from hotlap.trainer.optimizers.settings import OptimizerSettings
from hotlap.trainer.schedules import ScheduleSettings

Task = Literal["images", "text"]
Precision = Literal["fp32", "tf32", "fp16", "bf16", "pure-bf16", "fp8"]
CompileMode = Literal["", "default", "reduce-overhead", "max-autotune"]


@dataclass(frozen=True, slots=True)
class Phase:
    """From some epoch on, another size of images or batches: progressive resizing."""

    from_epoch: int
    image_size: int = 0
    """0 keeps that of the data."""
    batch: int = 0
    """0 keeps that of the loop."""


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """How long, how large, and by which rules."""

    task: Task = "images"
    """What is learnt: the class of an image, or the next token of a text."""
    batch: int = 128
    """Samples a device and backward."""
    accumulate: int = 1
    """Backwards an update; the gradient is that of one large batch."""
    epochs: int = 1
    steps: int = 0
    """Updates; 0 goes by epochs."""
    phases: tuple[Phase, ...] = ()
    seed: int = 0
    deterministic: bool = False
    """The same bits every time, also on a GPU; slower there."""
    label_smoothing: float = 0.0
    clip_norm: float = 0.0
    """The gradient's norm is at most this; 0 leaves it."""
    ema_decay: float = 0.0
    """Of the averaged weights that are validated and exported; 0 has none."""
    ema_every: int = 1
    """Updates from one averaging to the next."""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """How the learning rate goes with the batch of all devices."""
    base_batch: int = 256
    """The batch that the learning rate is for, where it goes with the batch."""
    validate_every: int = 1
    """Epochs; 0 never validates."""
    validate_batches: int = 0
    """Batches of a validation; 0 takes the whole set."""
    test_steps: int = 0
    """To try settings: so many updates from the start and 20 batches of validation, without a
    checkpoint read or written. 0 trains."""


@dataclass(frozen=True, slots=True)
class ComputeSettings:
    """How the arithmetic is done."""

    device: Literal["", "cpu", "cuda"] = ""
    """Empty takes a GPU where there is one."""
    precision: Precision = "bf16"
    """fp8: the linear layers but the last multiply in fp8, all else is as with bf16."""
    channels_last: bool = False
    """Images with their channels innermost in memory, for convolutions."""
    compile: CompileMode = ""
    checkpoint_blocks: int = 0
    """Activations of every n-th block are computed again in backward; 0 keeps them all."""
    cudnn_benchmark: bool = True


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """What is written, where and how often."""

    folder: str = "training"
    """For checkpoints, logs and weights."""
    checkpoint_minutes: float = 30.0
    """Between checkpoints; 0 makes them by steps alone."""
    checkpoint_steps: int = 0
    """Between checkpoints; 0 makes them by time alone."""
    keep_checkpoints: int = 2
    asynchronous: bool = True
    """Checkpoints are written while the training goes on."""
    resume: bool = True
    """From the newest good checkpoint of the folder, where there is one."""
    log_steps: int = 50
    """Between two lines of progress."""
    tensorboard: bool = False


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """One training."""

    model: ModelSettings = field(default_factory=ModelSettings)
    data: DataSettings = field(default_factory=DataSettings)
    optimizer: OptimizerSettings = field(default_factory=OptimizerSettings)
    schedule: ScheduleSettings = field(default_factory=ScheduleSettings)
    loop: LoopSettings = field(default_factory=LoopSettings)
    compute: ComputeSettings = field(default_factory=ComputeSettings)
    mesh: MeshSettings = field(default_factory=MeshSettings)
    output: OutputSettings = field(default_factory=OutputSettings)


def check(settings: TrainSettings) -> None:
    """Refuse what cannot be trained, before anything starts."""
    loop, compute, mesh, output = settings.loop, settings.compute, settings.mesh, settings.output
    at_least = {
        "loop.batch": (loop.batch, 1),
        "loop.accumulate": (loop.accumulate, 1),
        "loop.epochs": (loop.epochs, 0 if loop.steps else 1),
        "loop.steps": (loop.steps, 0),
        "loop.ema_every": (loop.ema_every, 1),
        "loop.base_batch": (loop.base_batch, 1),
        "loop.validate_every": (loop.validate_every, 0),
        "loop.validate_batches": (loop.validate_batches, 0),
        "loop.test_steps": (loop.test_steps, 0),
        "compute.checkpoint_blocks": (compute.checkpoint_blocks, 0),
        "output.keep_checkpoints": (output.keep_checkpoints, 1),
        "output.log_steps": (output.log_steps, 1),
    }
    for key, (found, least) in at_least.items():
        if found < least:
            raise UsageError(f"{key} is {found}; it has to be at least {least}")
    for key, share in {
        "loop.label_smoothing": loop.label_smoothing,
        "loop.ema_decay": loop.ema_decay,
    }.items():
        if not 0 <= share < 1:
            raise UsageError(f"{key} is {share}; it has to be at least 0 and less than 1")
    for key, seconds in {
        "mesh.timeout_s": mesh.timeout_s,
        "mesh.stall_s": mesh.stall_s,
    }.items():
        if seconds <= 0:
            raise UsageError(f"{key} is {seconds}; it has to be above 0")
    if loop.clip_norm < 0:
        raise UsageError(f"loop.clip_norm is {loop.clip_norm}; it has to be at least 0")
    if loop.task == "text" and (compute.channels_last or loop.phases):
        raise UsageError("compute.channels_last and loop.phases are for images; loop.task is text")
    if mesh.tp > 1 and compute.precision == "fp8":
        raise UsageError(
            "compute.precision is fp8; with mesh.tp a layer is cut over ranks that have no common "
            "scale for it: use bf16"
        )
    if mesh.pp > 1 and loop.accumulate > 1:
        raise UsageError(
            f"loop.accumulate is {loop.accumulate}; a pipeline cuts its batch itself, into "
            "mesh.micro_batches"
        )
    if mesh.pp > 1 and compute.precision == "fp16":
        raise UsageError(
            "compute.precision is fp16; in a pipeline losses cannot be scaled, use bf16"
        )
