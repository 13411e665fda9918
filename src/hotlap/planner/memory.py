"""Memory of one GPU by category, for the rank that needs most.

Korthikanti et al. 2022 (https://arxiv.org/abs/2205.05198) for activations and pipelines,
Rajbhandari et al. 2020 (https://arxiv.org/abs/1910.02054) for what is sharded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from hotlap.planner.layers import Layer, Model, Moment
from hotlap.planner.layout import Layout
from hotlap.planner.stages import Stage, distinct, params_of, stage_params, stages
from hotlap.planner.training import Training

GIB = 2**30
CONTEXT_BYTES = 0.5 * GIB
"""The CUDA context, its kernels and the workspaces of libraries."""
WORKSPACE_BYTES = 32 * 2**20
"""cuBLAS's, which torch's allocator hands out: 32 MiB on Hopper."""
CONVOLUTION_WORKSPACE_BYTES = 80 * 2**20
"""cuDNN's, beside it: 16 trainings of ResNet-50 and ViT-B on an H200 needed 40 to 190 MiB more than
their tensors, 8 of GPT-2, which has no convolution, 30 to 50."""
COMMUNICATOR_BYTES = 0.25 * GIB
"""NCCL's buffers, for each group of ranks that a rank belongs to."""
FRAGMENTED_SHARE = 0.03
"""Of all that the allocator hands out: rounding, and segments that nothing else fits in."""
COMPILED_AHEAD = 0.2
"""Of what a block keeps: a compiled backward computes the next block again while one is still
there. Six trainings with checkpoints on an H200 needed 0.1 to 0.7."""
BUCKET_BYTES = 2 * 25 * 2**20
"""DDP sends gradients in parcels; two are under way where they are no views of the gradients."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Of one rank; they add up."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    buffers: float
    unsharded: float
    """FSDP: groups of blocks that are gathered at a time. Autocast: weights cast for computing.
    Where the update is the worst moment, what it holds of every weight."""
    communication: float
    context: float
    fragmentation: float

    @property
    def total(self) -> float:
        """All of it."""
        kept = self.activations + self.logits + self.buffers + self.unsharded
        return self.states + kept + self.communication + self.context + self.fragmentation

    @property
    def unseen(self) -> float:
        """By torch's counter: the context, and what lies unused in its segments."""
        return self.context + self.fragmentation

    @property
    def states(self) -> float:
        """Weights, gradients and optimizer."""
        return self.weights + self.gradients + self.optimizer


def training_memory(model: Model, training: Training, layout: Layout) -> Bytes:
    """Of the rank that needs most."""
    model = model.under(layout.shard)
    every = stages(model, layout)
    ranks = [_training_rank(stage, model, training, layout) for stage in distinct(every)]
    return max(ranks, key=lambda one: one.total)


def evaluation_memory(model: Model, training: Training, layout: Layout) -> Bytes:
    """Weights and what one layer needs at a time; nothing is kept for a backward."""
    model = model.under(layout.shard)
    every = stages(model, layout)
    ranks = [_evaluation_rank(stage, model, training, layout) for stage in distinct(every)]
    return max(ranks, key=lambda one: one.total)


def _training_rank(stage: Stage, model: Model, training: Training, layout: Layout) -> Bytes:
    precision = training.precision
    params = stage_params(stage, model, layout)

    def held(is_shared_by_replicas: bool) -> float:
        return params.over(layout.shard * (layout.dp if is_shared_by_replicas else 1), layout.ep)

    optimizer = 0.0 if layout.offload else held(layout.zero >= 1) * training.optimizer_bytes
    activations, peak_logits = _activations(stage, model, training, layout)
    parts = {
        "weights": held(False) * precision.weight_bytes,
        "gradients": held(layout.zero >= 2) * precision.gradient_bytes,
        "optimizer": optimizer,
        "activations": activations,
        "logits": peak_logits,
        "buffers": float(model.buffer_bytes),
        "unsharded": _unsharded(stage, training, layout),
        "communication": _communication(layout),
    }
    moments = _moments(model, layout)
    if moments:
        parts["buffers"] += WORKSPACE_BYTES
        parts["buffers"] += CONVOLUTION_WORKSPACE_BYTES if model.has_convolutions else 0
        more = _compiled_bytes(stage, model, training, layout) * training.micro_batch
        _at_the_worst(parts, moments, training, layout, more)
    return _rounded(parts)


def _moments(model: Model, layout: Layout) -> tuple[Moment, ...]:
    """Of a trace, which is of the whole model; selective recomputation was not traced."""
    is_whole = layout.tp * layout.cp * layout.pp == 1 and not layout.offload_activations
    if not is_whole or layout.recompute == "selective":
        return ()
    return model.moments_recomputed if layout.recompute == "full" else model.moments


def _compiled_bytes(stage: Stage, model: Model, training: Training, layout: Layout) -> float:
    """Of a sample, what a compiled step holds more than the traced one, or less."""
    more = logits_bytes(model, training, layout) - model.logits_bytes
    if training.is_compiled and layout.recompute == "full" and stage.blocks:
        kept = max(layer_kept(layer, Layout(), 1.0) for layer, _ in stage.blocks)
        more += COMPILED_AHEAD * kept
    return more


def _at_the_worst(
    parts: dict[str, float],
    moments: tuple[Moment, ...],
    training: Training,
    layout: Layout,
    more: float,
) -> None:
    """Put what was seen alive in the place of what is kept for backward.

    There is `more` of it where the step is compiled. Where gradients lie in memory from step
    to step (sums over several backwards, buckets, shards, Megatron's buffers) all of them meet the
    most activations. Else they come while these go, and the update, when activations are gone, may
    need more.
    """
    b = training.micro_batch
    n_micro = training.batch // (layout.n_data * b)
    if n_micro > 1 or layout.n_data > 1 or training.precision.master_bytes:
        seen = moments[-1].per_sample_bytes * b + more
    else:
        worst = max(moments, key=lambda one: one.per_sample_bytes * b + one.fixed_bytes)
        seen = worst.per_sample_bytes * b + more
        casts = min(parts["unsharded"], worst.fixed_bytes)
        n_weights = parts["weights"] / training.precision.weight_bytes
        update = parts["gradients"] + n_weights * training.optimizer.temporary_bytes
        if seen + worst.fixed_bytes > update:
            parts |= {"unsharded": casts, "gradients": worst.fixed_bytes - casts}
        else:
            parts |= {"unsharded": update - parts["gradients"], "activations": 0.0, "logits": 0.0}
            return
    parts["logits"] = min(parts["logits"], seen)
    parts["activations"] = seen - parts["logits"]


def _evaluation_rank(stage: Stage, model: Model, training: Training, layout: Layout) -> Bytes:
    precision = training.precision
    b = training.micro_batch / layout.cp
    logits = model.logits_evaluated_bytes * b / _vocab_cut(model, layout)
    parts = {
        "weights": stage_params(stage, model, layout).over(layout.shard, layout.ep)
        * precision.weight_bytes,
        "gradients": 0.0,
        "optimizer": 0.0,
        "activations": model.widest_bytes * b,
        "logits": logits if stage.is_last else 0.0,
        "buffers": float(model.buffer_bytes),
        "unsharded": _unsharded(stage, training, layout) / 2,
        "communication": _communication(layout),
    }
    return _rounded(parts)


def _rounded(parts: dict[str, float]) -> Bytes:
    allocated = sum(parts.values()) - parts["communication"]
    return Bytes(**parts, context=CONTEXT_BYTES, fragmentation=FRAGMENTED_SHARE * allocated)


def layer_kept(layer: Layer, layout: Layout, b: float) -> float:
    """Bytes that one layer keeps of one micro-batch."""
    if layout.recompute == "full":
        return layer.input_bytes * b / layout.cp / layout.sequence_cut
    kept = layer.kept_selective if layout.recompute == "selective" else layer.kept
    return (kept.whole / layout.sequence_cut + kept.cut / layout.tp) * b / layout.cp


def _activations(
    stage: Stage, model: Model, training: Training, layout: Layout
) -> tuple[float, float]:
    """What micro-batches under way keep, and the logits of the one at the loss."""
    b = float(training.micro_batch)
    kept = sum(layer_kept(layer, layout, b) * n for layer, n in stage.blocks)
    total = kept * in_flight_micro_batches(stage, training, layout)
    if layout.offload_activations and stage.blocks:
        # One block computes while the one before goes out, or the next comes in.
        total = min(total, 2 * max(layer_kept(layer, layout, b) for layer, _ in stage.blocks))
    plain = Layout(tp=layout.tp, cp=layout.cp, sp=layout.sp)
    if layout.recompute == "full" and stage.blocks:
        # One block at a time is whole again while its backward runs.
        total += max(layer_kept(layer, plain, b) for layer, _ in stage.blocks)
    total += sum(layer_kept(layer, plain, b) for layer in stage.ends)
    b_logits = b / layout.cp / _vocab_cut(model, layout)
    logits = logits_bytes(model, training, layout) * b_logits if stage.is_last else 0.0
    return total, logits


def logits_bytes(model: Model, training: Training, layout: Layout) -> float:
    """Of a sample; of a loss that is compiled with its model, the output and its gradient.

    In fp32 the gradient takes the output's place. Not in 16 bits, where products pad their rows,
    nor with checkpoints, as far as was seen on an H200.
    """
    if not (training.is_loss_compiled and model.is_traced):
        return model.logits_bytes
    is_in_place = training.precision.element_bytes == 4 and layout.recompute == "none"
    return model.output_bytes if is_in_place else 2 * model.output_bytes


def _vocab_cut(model: Model, layout: Layout) -> int:
    """Into how many parts ranks share out the outputs; those of a traced model stay whole."""
    return layout.tp if model.head.n_params_cut else 1


def in_flight_micro_batches(stage: Stage, training: Training, layout: Layout) -> float:
    """Micro-batches whose activations a stage holds at a time, in units of its whole share."""
    n_micro = max(1, training.batch // (layout.n_data * training.micro_batch))
    if layout.pp == 1:
        return 1.0
    if layout.schedule == "gpipe":
        return float(n_micro)
    if layout.schedule == "zero-bubble":
        # Gradients of weights wait, and activations with them, to fill what would be idle.
        return float(min(n_micro, 2 * (layout.pp - stage.index) - 1))
    if layout.v > 1:
        # In parts: those that go in before the first comes back, and the one that is turned round.
        parts = 2 * (layout.pp - stage.index - 1) + (layout.v - 1) * layout.pp + 1
        return min(float(n_micro * layout.v), float(parts)) / layout.v
    return float(min(n_micro, layout.pp - stage.index))


def _unsharded(stage: Stage, training: Training, layout: Layout) -> float:
    precision = training.precision
    compute_bytes = precision.copy_bytes or precision.weight_bytes
    largest = max(params_of(layer, layout).total for layer, _ in stage.layers)
    total = sum(params_of(layer, layout).total * n for layer, n in stage.layers)
    if layout.shard > 1 and not layout.reshard:
        # All blocks stay gathered; of a pipeline all gradients too, until the last micro-batch.
        waiting = _waiting(total, training, layout) if layout.keeps_gathered else largest
        return total * compute_bytes + waiting * precision.reduce_bytes
    if layout.shard > 1:
        # One block computes while the next is gathered; the gradients of one wait to be sent.
        return largest * (2 * compute_bytes + precision.reduce_bytes)
    if precision.copy_bytes:
        return total * precision.copy_bytes
    return 0.0


def _waiting(total: float, training: Training, layout: Layout) -> float:
    """Of a rank's parameters, those whose gradients wait for further micro-batches.

    Where an interleaved pipeline goes round once, each part has all its micro-batches come back one
    after the other, and its gradients can go: two parts wait at a time.
    """
    n_micro = training.batch // (layout.n_data * training.micro_batch)
    return total * min(1.0, 2 / layout.v) if n_micro <= layout.pp else total


def _communication(layout: Layout) -> float:
    sizes = (layout.dp, layout.shard, layout.tp, layout.cp, layout.pp, layout.ep)
    n_groups = sum(size > 1 for size in sizes)
    buckets = BUCKET_BYTES if layout.dp > 1 and layout.shard == 1 else 0
    return n_groups * COMMUNICATOR_BYTES + buckets


def largest_micro_batch(
    model: Model, training: Training, layout: Layout, limit_bytes: float
) -> int:
    """The most samples a backward that fit; 0 where not even one does."""

    def fits(b: int) -> bool:
        one = replace(training, micro_batch=b, batch=max(training.batch, b * layout.n_data))
        return training_memory(model, one, layout).total <= limit_bytes

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
        if high > 2**22:
            break
    while high - low > 1:
        middle = ceil((low + high) / 2)
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
