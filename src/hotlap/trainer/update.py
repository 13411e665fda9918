"""One update: forward, loss and backward of each micro-batch, then the optimizer."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from hotlap.distributed.pipeline import Pipeline
from hotlap.trainer.build import WITH_CUDA_GRAPHS, Training
from hotlap.trainer.clip import clip_gradients
from hotlap.trainer.metrics import Metrics
from hotlap.trainer.schedules import lr_factor, momentum_at, set_rates
from hotlap.trainer.tasks import hard_targets, loss_of, n_targets, total

Batch = tuple[Tensor, Tensor]


def update(
    t: Training,
    micro_batches: list[Batch],
    step: int,
    n_steps: int,
    seen: Metrics,
    counts_hits: bool = False,
) -> None:
    """Make the update that comes after `step` others; count hits of images where that is wanted."""
    counts_hits = counts_hits and t.settings.loop.task == "images"
    loop, scaler = t.settings.loop, t.arithmetic.scaler
    set_learning_rate(t, step, n_steps)
    if t.settings.compute.compile in WITH_CUDA_GRAPHS:
        torch.compiler.cudagraph_mark_step_begin()
    prepared = [
        t.prepare(*batch, number=step * loop.accumulate + i)
        for i, batch in enumerate(micro_batches)
    ]
    counts = [n_targets(targets, not t.loss_is_mean) for _, targets in prepared]
    n_all = total(counts, t.data_group, t.layout.n_data)
    if t.pipeline is not None:
        ((inputs, targets),) = prepared
        through_pipeline(t, t.pipeline, inputs, targets, step, n_all, seen, counts_hits)
    else:
        one_by_one(t, prepared, counts, step, n_all, seen, counts_hits)
    if t.sharded_update is not None:
        t.sharded_update.take_gradients()
    if loop.clip_norm:
        scaler.unscale_(t.optimizer)
        clip_gradients(t.optimized.parameters(), loop.clip_norm, t.stages_group)
    scaler.step(t.optimizer)
    scaler.update()
    forget_gradients(t.optimizer)
    if t.sharded_update is not None:
        t.sharded_update.share_weights()
    if t.average is not None:
        t.average.update(t.bare)


def forget_gradients(optimizer: torch.optim.Optimizer) -> None:
    """As `zero_grad` does, without what that looks up and records in every step."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def one_by_one(
    t: Training,
    micro_batches: list[Batch],
    counts: list[Tensor | int],
    step: int,
    n_all: Tensor | int,
    seen: Metrics,
    counts_hits: bool,
) -> None:
    """Forward and backward of each micro-batch."""
    scaler = t.arithmetic.scaler
    for i, (inputs, targets) in enumerate(micro_batches):
        with exchanging(t, is_last=i == len(micro_batches) - 1):
            with t.arithmetic.autocast():
                loss, logits = t.model(inputs, targets)
            # A sum over targets some of which count for nothing, or a mean over all of them. Ranks
            # average their gradients: times their number that is the sum again.
            n_in_loss = counts[i] if t.loss_is_mean else 1
            is_whole = t.loss_is_mean and n_in_loss * t.layout.n_data == n_all
            whole_loss = loss if is_whole else loss * (n_in_loss * t.layout.n_data / n_all)
            scaler.scale(whole_loss).backward()
        seen.add_loss(step + 1, loss, counts[i], t.loss_is_mean)
        if counts_hits:
            seen.add_accuracy(logits, hard_targets(targets))


def through_pipeline(
    t: Training,
    pipeline: Pipeline,
    inputs: Tensor,
    targets: Tensor,
    step: int,
    n_all: Tensor | int,
    seen: Metrics,
    counts_hits: bool,
) -> None:
    """Forward and backward of a batch through the stages of all ranks."""

    share = t.layout.n_data / n_all

    def loss(logits: Tensor, part: Tensor) -> Tensor:
        return loss_of(logits, part, t.settings.loop.label_smoothing) * share

    with t.arithmetic.autocast():
        result = pipeline.step(inputs, targets, loss)
    if result is not None:
        logits, whole_loss = result
        seen.add_loss(step + 1, whole_loss / share, n_targets(targets, not t.loss_is_mean))
        if counts_hits:
            seen.add_accuracy(logits.detach(), hard_targets(targets))


def set_learning_rate(t: Training, step: int, n_steps: int) -> None:
    """A function of the step's number, so that nothing of it has to be kept."""
    schedule = t.settings.schedule
    lr = t.base_lr * lr_factor(step, n_steps, schedule)
    set_rates(t.optimizer, lr, momentum_at(step, n_steps, schedule))


def exchanging(t: Training, is_last: bool) -> AbstractContextManager[None]:
    """Ranks exchange gradients in the last backward of an update, and in no other."""
    if isinstance(t.model, DistributedDataParallel) and not is_last:
        return t.model.no_sync()
    if isinstance(t.bare, FSDPModule):
        t.bare.set_requires_gradient_sync(is_last)
    return nullcontext()
