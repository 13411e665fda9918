"""The work of one rank of a stage at nominal rates: forward, backward and update."""

from __future__ import annotations

from dataclasses import dataclass

from hotlap.planner.cluster import Gpus
from hotlap.planner.layer_counting import Cut, layer_counter
from hotlap.planner.layers import Layer, Model, Recomputed
from hotlap.planner.layout import Layout
from hotlap.planner.links import NOTHING, Sending
from hotlap.planner.offload import sending_s, update_s, updated_params
from hotlap.planner.sendings import Sendings
from hotlap.planner.stages import Stage, params_of, stage_params
from hotlap.planner.training import Training

CHECKPOINT_LAUNCHES = 18
"""What a checkpoint of torch's costs the host beside the kernels, in launches: hooks on all that a
block keeps, and the state of random numbers; 0.6 to 0.8 ms a block of GPT-2 or ViT. A compiler has
it in its program instead."""
FUSED_BACKWARD = 2.5
"""A fused attention computes the scores once more, beside the four products of its backward."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One direction of one micro-batch through a stage."""

    product_s: float
    """Products at the chip's peak."""
    convolution_s: float
    """Convolutions at the chip's peak."""
    attention_s: float
    """Fused attention at the chip's peak, of what a causal mask leaves."""
    stream_s: float
    """Memory traffic at the chip's peak."""
    n_kernels: float
    tensor: Sending
    """Tensor, context and expert parallelism: what the next kernel waits for."""
    shard: Sending
    """FSDP: what can be fetched ahead."""
    first_shard: Sending
    """Of it, what nothing can hide: the first block's."""
    host_s: float
    """Activations, on the link to the host's memory."""


@dataclass(frozen=True, slots=True)
class StageWork:
    """Of one rank of a stage."""

    stage: Stage
    forward: Pass
    backward: Pass
    """With what is computed again."""
    neighbour: Sending
    """To the next stage, one micro-batch, one way."""
    gradients: Sending
    """Once a step."""
    update_stream_s: float
    update_host_s: float
    """Where the host updates."""


class Counter:
    """Adds up the work of stages of one plan."""

    def __init__(self, model: Model, gpus: Gpus, training: Training, layout: Layout) -> None:
        self._model, self._gpus, self._training, self._layout = model, gpus, training, layout
        self._precision = training.precision
        cut = Cut(layout.tp, layout.cp, layout.ep, layout.sequence_cut)
        self._layers = layer_counter(model, gpus, training, cut)
        self.peak = self._layers.peak
        self._bandwidth = gpus.chip.bandwidth_bytes_per_s
        self._sends = Sendings(model, gpus, training, layout)

    def stage(self, stage: Stage) -> StageWork:
        forward = self._forward(stage)
        layout, training = self._layout, self._training
        params = stage_params(stage, self._model, layout)
        held = updated_params(stage, self._model, layout)
        state = training.optimizer_bytes + self._precision.weight_bytes
        moved = held * (2 * state + 2 * self._precision.gradient_bytes)
        if self._model.is_traced and not training.is_fused:
            moved = max(moved, held * training.optimizer.plain_bytes)
        return StageWork(
            stage,
            forward,
            self._backward(stage, forward),
            self._sends.neighbour(),
            self._sends.gradients(params) + self._once_a_step(stage),
            0.0 if layout.offload else moved / self._bandwidth,
            update_s(held, self._gpus, training) if layout.offload else 0.0,
        )

    def _once_a_step(self, stage: Stage) -> Sending:
        """What stages of a pipeline gather and send that keep it between micro-batches."""
        sent = NOTHING
        if self._layout.keeps_gathered:
            for layer, n in stage.layers:
                both = self._sends.gathered(layer) + self._sends.scattered(layer)
                sent += both.times(n)
        return sent

    def _forward(self, stage: Stage) -> Pass:
        product_s = convolution_s = attention_s = stream_s = n_kernels = n_params = 0.0
        tensor, shard, first = NOTHING, NOTHING, NOTHING
        for layer, n in stage.layers:
            work = self._layers.forward(layer)
            product_s += n * work.product_s
            convolution_s += n * work.convolution_s
            attention_s += n * work.attention_s
            stream_s += n * work.stream_s
            n_kernels += n * layer.n_kernels
            tensor += self._sends.tensor(layer).times(n)
            gathered = self._sends.gathered(layer)
            shard += gathered.times(n)
            first = first if first.link_s or first.net_s else gathered
            n_params += n * self._held(layer)
        stream_s += self._cast_s(n_params)
        if self._layout.keeps_gathered:
            shard = first = NOTHING
        product_s += attention_s if not self._layers.is_fused else 0.0
        attention_s = attention_s if self._layers.is_fused else 0.0
        host_s = sending_s(stage, self._gpus, self._training, self._layout)
        return Pass(
            product_s, convolution_s, attention_s, stream_s, n_kernels, tensor, shard, first, host_s
        )

    def _backward(self, stage: Stage, forward: Pass) -> Pass:
        product_s = convolution_s = scores_s = n_params = n_held = 0.0
        scattered = NOTHING
        for layer, n in stage.layers:
            n_params += n * params_of(layer, self._layout).total
            n_held += n * self._held(layer)
            work = self._layers.backward(layer)
            product_s += n * work.product_s
            convolution_s += n * work.convolution_s
            scores_s += n * work.attention_s
            scattered += self._sends.scattered(layer).times(n)
        if not self._layers.is_fused:
            product_s += 2 * scores_s
        attention_s = scores_s * FUSED_BACKWARD if self._layers.is_fused else 0.0
        stream_s = (forward.stream_s - self._cast_s(n_held)) * self._layers.backward_traffic
        stream_s += self._accumulate_s(n_params, n_held)
        n_kernels = forward.n_kernels * self._model.backward_kernels
        tensor, shard = forward.tensor, NOTHING if self._layout.keeps_gathered else scattered
        if self._layout.reshard:
            shard += forward.shard
        if self._layout.recompute == "full":
            again = self._recomputed(stage)
            product_s += forward.product_s * again.products
            convolution_s += forward.convolution_s * again.products
            attention_s += forward.attention_s
            stream_s += forward.stream_s * again.traffic
            n_kernels += forward.n_kernels * again.kernels
            if self._model.is_traced and not self._training.is_compiled:
                n_kernels += CHECKPOINT_LAUNCHES * sum(n for _, n in stage.blocks)
            tensor += forward.tensor
        elif self._layout.recompute == "selective" and not self._layers.is_fused:
            product_s += scores_s
            stream_s += self._score_stream_s(stage)
        parts = (product_s, convolution_s, attention_s, stream_s, n_kernels)
        return Pass(*parts, tensor, shard, NOTHING, forward.host_s)

    def _held(self, layer: Layer) -> float:
        """Parameters of a layer that this rank keeps."""
        return params_of(layer, self._layout).over(self._layout.shard, self._layout.ep)

    def _cast_s(self, n_held: float) -> float:
        """Weights are read, and written in the type that is computed in."""
        if not self._precision.copy_bytes:
            return 0.0
        moved = self._precision.weight_bytes + self._precision.copy_bytes
        return n_held * moved / self._bandwidth

    def _accumulate_s(self, n_params: float, n_held: float) -> float:
        """New gradients are written, read, and added to what is there.

        A plain script has none there before its only backward: they are cast at most.
        """
        kept = n_held * self._precision.gradient_bytes
        made = n_params * (self._precision.copy_bytes or self._precision.weight_bytes)
        n_micro = self._training.batch // (self._layout.n_data * self._training.micro_batch)
        if self._model.is_traced and n_micro == 1:
            return (made + kept if self._precision.copy_bytes else 0.0) / self._bandwidth
        return 2 * (made + kept) / self._bandwidth

    def _recomputed(self, stage: Stage) -> Recomputed:
        """Of a stage's forward; where no trace told, all but the output layer."""
        total = sum(layer.flops * n for layer, n in stage.layers)
        ends = self._model.head.flops if stage.is_last else 0.0
        blocks = 1.0 - ends / total if total else 1.0
        traced = self._model.recomputed
        if traced is None:
            return Recomputed(blocks, blocks, 1.0)
        # The trace is of the whole model: a stage without the output layer has more of it.
        of_the_model = 1.0 - self._model.head.flops / self._model.flops if total else 1.0
        more = blocks / of_the_model if of_the_model else 1.0
        # A compiler computes what is bound by bandwidth again inside the kernels of backward.
        traffic = 0.0 if self._training.is_compiled else min(1.0, more * traced.traffic)
        products, kernels = min(1.0, more * traced.products), min(1.0, more * traced.kernels)
        return Recomputed(products, traffic, kernels)

    def _score_stream_s(self, stage: Stage) -> float:
        from hotlap.planner.transformer import SCORE_PASSES

        scores = sum(n * one.n_scores for layer, n in stage.layers for one in layer.attentions)
        moved = scores * SCORE_PASSES * self._precision.element_bytes
        cut = self._layout.tp * self._layout.cp
        return moved * self._training.micro_batch / cut / self._bandwidth
