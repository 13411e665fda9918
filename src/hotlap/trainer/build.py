"""From settings to everything that a training consists of, in the order in which it has to be made.

The order matters: the model is made from the seed on every rank alike, then moved, cast, told to
recompute, compiled, and only then cut over ranks; the optimizer is made of what is left on this
rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from hotlap.data.augment import Augment
from hotlap.data.feed import Feed, build_feed
from hotlap.data.synthetic import ImageInput, ModelInput, TokenInput
from hotlap.distributed.launch import Launch, Started
from hotlap.distributed.mesh import Layout, MeshSettings, lay_out
from hotlap.distributed.parallelise import (
    build_mesh,
    joined,
    parallelise,
    repeated_blocks,
)
from hotlap.distributed.pipeline import Pipeline, cut, merged
from hotlap.distributed.watch import Watch
from hotlap.distributed.zero import ShardedUpdate
from hotlap.models.build import build_model
from hotlap.models.checkpointing import checkpoint_blocks
from hotlap.models.vit import ViT, check_size
from hotlap.trainer.ema import Ema, EmaSettings
from hotlap.trainer.learner import Learner
from hotlap.trainer.optimizers.build import build_optimizer
from hotlap.trainer.precision import Arithmetic, cast, set_up
from hotlap.trainer.schedules import scaled_lr
from hotlap.trainer.settings import TrainSettings
from hotlap.trainer.tasks import Reduction

WITH_CUDA_GRAPHS = ("reduce-overhead", "max-autotune")


@dataclass(slots=True)
class Training:
    """What the loop works with."""

    settings: TrainSettings
    launch: Launch
    layout: Layout
    arithmetic: Arithmetic
    model: nn.Module
    """As it is called: with its loss, cut, replicated, compiled."""
    bare: nn.Module
    """The model itself, inside of all that: its names are those of checkpoints."""
    optimized: nn.Module
    """The parameters as the optimizer has them, by name; mostly `bare`."""
    optimizer: torch.optim.Optimizer
    sharded_update: ShardedUpdate | None
    """Where replicas share the optimizer state."""
    average: Ema | None
    feed: Feed
    augment: Augment
    validation: Feed | None
    normalise: Augment
    """For validation: what it leaves of the augmentation."""
    base_lr: float
    pipeline: Pipeline | None
    """Where the layers are cut over ranks; then `model` is the stages of this one."""
    data_group: Any
    """Ranks that see different data; None for one."""
    figures_group: Any
    """Ranks that know a part of the figures; None for one."""
    stages_group: Any
    """Ranks that hold the other layers; None where this one holds all."""
    cpu_group: Any
    """All ranks, talking over the CPU; None for one process."""
    writing_group: Any
    """The same for checkpoints. They are written beside the training, by a thread that talks when
    it likes: in one group, its words and the loop's would be taken for one another."""
    watch: Watch
    """Over ranks that stand still."""
    loss_is_mean: bool
    """Whether all targets of a training batch count; else the model's loss is a sum."""

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return self.arithmetic.device

    def prepare(self, inputs: Tensor, targets: Tensor, number: int) -> tuple[Tensor, Tensor]:
        """A batch as the model takes it; `number` counts the batches of the whole training."""
        inputs, targets = self.augment(inputs, targets, number)
        return self._in_form(inputs), targets

    def prepare_validation(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The same for a batch that is not trained on."""
        inputs, targets = self.normalise(inputs, targets, 0)
        return self._in_form(inputs), targets

    def _in_form(self, inputs: Tensor) -> Tensor:
        if inputs.dim() != 4:
            return inputs
        compute = self.settings.compute
        is_last = compute.channels_last
        form = torch.channels_last if is_last else torch.contiguous_format
        dtype = torch.bfloat16 if compute.precision == "pure-bf16" else inputs.dtype
        return inputs.to(dtype).contiguous(memory_format=form)

    @property
    def unit(self) -> str:
        """What is counted."""
        return "tokens" if self.settings.loop.task == "text" else "images"

    @property
    def lr(self) -> float:
        """The learning rate of the last update."""
        return float(self.optimizer.param_groups[0]["lr"])

    def sizes(self, epoch: int) -> dict[str, int | None]:
        """Image size and batch of an epoch, where a phase changes them."""
        sizes: dict[str, int | None] = {"image_size": None, "batch_size": None}
        for phase in sorted(self.settings.loop.phases, key=lambda phase: phase.from_epoch):
            if phase.from_epoch <= epoch:
                sizes["image_size"] = phase.image_size or sizes["image_size"]
                sizes["batch_size"] = phase.batch or sizes["batch_size"]
        return sizes

    def n_batches(self, epoch: int) -> int:
        """Of an epoch, on each rank."""
        batch = self.sizes(epoch)["batch_size"]
        return self.feed.n_batches if batch is None else self.feed.n_batches_of(batch)


def build(settings: TrainSettings, started: Started) -> Training:
    """Everything, on this rank."""
    launch, device = started.launch, started.device
    layout = lay_out(_mesh_settings(settings), launch.rank, launch.world_size)
    arithmetic = set_up(settings.compute, device, settings.loop.deterministic)
    torch.manual_seed(settings.loop.seed)
    mesh = build_mesh(layout, device.type)
    bare = cast(build_model(settings.model).to(device), settings.compute)
    _check_image_sizes(bare, settings)
    if settings.compute.checkpoint_blocks:
        checkpoint_blocks(bare, settings.compute.checkpoint_blocks)
    pipeline = None
    if mesh is not None and layout.sizes["pp"] > 1:
        parts = _stages(bare, settings, layout, mesh)
        pipeline = Pipeline(parts, layout, mesh, device)
        model = nn.ModuleList(parts.values())
        bare = _bare(list(parts.values()))
    else:
        model = _with_loss(bare, settings, layout, mesh)
    sharded_update = None
    if mesh is not None and layout.settings.shard_optimizer:
        sharded_update = ShardedUpdate(bare, mesh["dp"])
    optimized = bare if sharded_update is None else sharded_update.model
    # Random numbers drawn from here on (dropout) differ between ranks that see different data, and
    # agree between those that share a model.
    torch.manual_seed(settings.loop.seed + 1 + layout.data_rank)
    loop = settings.loop
    batch = loop.batch * loop.accumulate * layout.n_data
    return Training(
        settings=settings,
        launch=launch,
        layout=layout,
        arithmetic=arithmetic,
        model=model,
        bare=bare,
        optimized=optimized,
        optimizer=build_optimizer(optimized, settings.optimizer),
        sharded_update=sharded_update,
        average=_average(bare, settings),
        feed=_feed(settings, layout, device, is_training=True),
        augment=_augment(settings, layout, device, is_training=True),
        normalise=_augment(settings, layout, device, is_training=False),
        validation=_feed(settings, layout, device, is_training=False)
        if loop.validate_every
        else None,
        base_lr=scaled_lr(settings.optimizer.lr, batch, loop.base_batch, loop.lr_scaling),
        pipeline=pipeline,
        data_group=_data_group(layout, mesh),
        figures_group=_figures_group(layout, mesh),
        stages_group=mesh["pp"].get_group() if mesh is not None and pipeline else None,
        cpu_group=_cpu_group(settings, launch),
        writing_group=_cpu_group(settings, launch),
        watch=Watch(started, settings.mesh.stall_s, settings.mesh.timeout_s),
        loss_is_mean=not may_be_padded(settings),
    )


def may_be_padded(settings: TrainSettings) -> bool:
    """Whether some targets of a training batch may count for nothing."""
    return bool(settings.data.tokens_per_batch) or not settings.data.drop_last


def _check_image_sizes(model: nn.Module, settings: TrainSettings) -> None:
    """A phase that the model cannot take is refused at the start, not after some epochs."""
    if isinstance(model, ViT):
        for phase in settings.loop.phases:
            check_size((phase.image_size,), model.patch_size, "loop.phases: ")


def _mesh_settings(settings: TrainSettings) -> MeshSettings:
    """With several backwards an update, a static graph breaks DDP's first one (torch 2.13)."""
    mesh = settings.mesh
    is_single = settings.loop.accumulate == 1 and mesh.pp == 1
    return replace(mesh, static_graph=mesh.static_graph and is_single)


def _bare(stages: list[nn.Module]) -> nn.Module:
    """What the optimizer and checkpoints see of the stages of this rank."""
    inside = [getattr(one, "module", one) for one in stages]  # of what replicates them
    return inside[0] if len(inside) == 1 else merged(inside)


def _cpu_group(settings: TrainSettings, launch: Launch) -> Any:
    if launch.world_size == 1:
        return None
    return dist.new_group(backend="gloo", timeout=timedelta(seconds=settings.mesh.timeout_s))


def _data_group(layout: Layout, mesh: DeviceMesh | None) -> Any:
    return None if mesh is None or layout.n_data == 1 else joined(layout, mesh, "dp", "shard")


def _figures_group(layout: Layout, mesh: DeviceMesh | None) -> Any:
    """The last stage knows the loss; so those of all stages add up what they know."""
    if mesh is None or layout.n_data * layout.sizes["pp"] == 1:
        return None
    return joined(layout, mesh, "pp", "dp", "shard")


def _with_loss(
    bare: nn.Module, settings: TrainSettings, layout: Layout, mesh: DeviceMesh | None
) -> nn.Module:
    """The model with its loss, over the ranks: one program, unless each block is gathered alone."""
    loop, mode = settings.loop, settings.compute.compile
    reduction: Reduction = "sum" if may_be_padded(settings) else "mean"
    how = (loop.task, loop.label_smoothing, reduction)
    if layout.sizes["shard"] > 1 or layout.sizes["tp"] > 1:
        _compile_blocks(bare, mode)
        return Learner(parallelise(bare, layout, mesh), *how)
    learner = Learner(bare, *how)
    if mode:
        learner.compile(mode=mode)
    return parallelise(learner, layout, mesh)


def _stages(
    bare: nn.Module, settings: TrainSettings, layout: Layout, mesh: DeviceMesh
) -> dict[int, nn.Module]:
    """The stages of this rank; compiled after the cut, for a copy of a module is not compiled."""
    stages = cut(bare, layout)
    for stage in stages.values():
        _compile_blocks(stage, settings.compute.compile)
    return {i: parallelise(stage, layout, mesh) for i, stage in stages.items()}


def _compile_blocks(model: nn.Module, mode: str) -> None:
    if mode:
        for block in repeated_blocks(model):
            block.compile(mode=mode)


def _average(model: nn.Module, settings: TrainSettings) -> Ema | None:
    loop = settings.loop
    if not loop.ema_decay:
        return None
    return Ema(model, EmaSettings(loop.ema_decay, every=loop.ema_every))


def model_input(settings: TrainSettings) -> ModelInput:
    """What the model takes, for data that are made for it."""
    if settings.loop.task == "text":
        return TokenInput(settings.model.vocab_size)
    return ImageInput(settings.model.n_channels, settings.model.n_classes)


def _augment(
    settings: TrainSettings, layout: Layout, device: torch.device, is_training: bool
) -> Augment:
    return Augment(
        settings.data,
        settings.model.n_classes,
        layout.data_rank,
        settings.loop.seed,
        device,
        is_training,
    )


def _feed(settings: TrainSettings, layout: Layout, device: torch.device, is_training: bool) -> Feed:
    return build_feed(
        settings.data,
        batch_size=settings.loop.batch,
        rank=layout.data_rank,
        world_size=layout.n_data,
        seed=settings.loop.seed,
        device=device,
        is_training=is_training,
        model_input=model_input(settings),
    )
