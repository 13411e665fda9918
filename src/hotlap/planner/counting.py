"""The work of one rank of a stage at nominal rates: forward, backward and update."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from hotlap.planner.cluster import Gpus, peak_flops_per_s
from hotlap.planner.layers import Attention, Layer, Matmul, Model
from hotlap.planner.layout import Layout
from hotlap.planner.links import NOTHING, Sending
from hotlap.planner.offload import sending_s, update_s, updated_params
from hotlap.planner.products import peak_seconds
from hotlap.planner.sendings import Sendings
from hotlap.planner.stages import Stage, params_of, stage_params
from hotlap.planner.training import Training

COMPILED_TRAFFIC = 0.62
"""Of the bytes that element-wise kernels move in eager mode: ResNet-50 moves 211 MB an image where
its norms and activations are fused, 340 MB where they are not."""
COMPILED_LOSS = 0.5
"""The same of a loss over many classes: the logits are read in 16 bits, and no copy is written."""
FP8_CAST_BYTES = 8
"""Moved for each number that a product in fp8 takes: read twice, for its scale and its cast, and
written in both orders that the products need, with what its gradient's cast costs in backward."""
CHECKPOINT_LAUNCHES = 18
"""What a checkpoint of torch's costs the host beside the kernels, in launches: hooks on all that a
block keeps, and the state of random numbers; 0.6 to 0.8 ms a block of GPT-2 or ViT."""
MISALIGNED = {4: 0.36, 2: 0.16}
"""Of its rate, a 16-bit product keeps whose rows are no multiple of 16 bytes but of so many: 8,190
columns on an H200, and GPT-2's vocabulary of 50,257 in eager mode."""
TRANSPOSING_PASSES = {"16bit": 9.5, "fp8": 9.5, "tf32": 2.6}
"""Over input and output of a convolution, forward, where images do not lie with their channels
last: ResNet-50 on an H200, batch 128, 2,248 img/s in bf16 and 2,069 in TF32, torch's default."""
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


def _plain(layer: Layer) -> Iterator[Matmul]:
    return (one for one in layer.matmuls if not one.is_convolution)


def _convolutions(layer: Layer) -> Iterator[Matmul]:
    return (one for one in layer.matmuls if one.is_convolution)


class Counter:
    """Adds up the work of stages of one plan."""

    def __init__(self, model: Model, gpus: Gpus, training: Training, layout: Layout) -> None:
        self._model, self._gpus, self._training, self._layout = model, gpus, training, layout
        self._precision = training.precision
        products = peak_flops_per_s(gpus.chip, self._precision.rate)
        self._product_peak, self._convolution_peak = products, self._peak_of_convolutions(products)
        # Utilisation is against the rate that most of the work runs at.
        self.peak = self._convolution_peak if model.is_convolutional else products
        # Attention and all else that is no linear layer stays in 16 bits.
        other = "16bit" if self._precision.rate == "fp8" else self._precision.rate
        self._attention_peak = peak_flops_per_s(gpus.chip, other)
        self._bandwidth = gpus.chip.bandwidth_bytes_per_s
        self._sends = Sendings(model, gpus, training, layout)

    def _peak_of_convolutions(self, products: float) -> float:
        rate = self._precision.convolution_rate
        has_it = rate != "tf32" or self._gpus.chip.tf32_flops_per_s
        return peak_flops_per_s(self._gpus.chip, rate) if rate and has_it else products

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
            product_s += n * sum(self._product_s(one) for one in _plain(layer))
            convolution_s += n * sum(self._product_s(one) for one in _convolutions(layer))
            attention_s += n * self._attention_s(layer)
            stream_s += n * self._stream_s(layer)
            n_kernels += n * layer.n_kernels
            tensor += self._sends.tensor(layer).times(n)
            gathered = self._sends.gathered(layer)
            shard += gathered.times(n)
            first = first if first.link_s or first.net_s else gathered
            n_params += n * self._held(layer)
        stream_s += self._cast_s(n_params)
        if self._layout.keeps_gathered:
            shard = first = NOTHING
        product_s += attention_s if not self._is_fused else 0.0
        attention_s = attention_s if self._is_fused else 0.0
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
            product_s += n * sum(self._product_backward_s(one) for one in _plain(layer))
            convolution_s += n * sum(self._product_backward_s(one) for one in _convolutions(layer))
            scores_s += n * self._attention_s(layer)
            scattered += self._sends.scattered(layer).times(n)
        if not self._is_fused:
            product_s += 2 * scores_s
        attention_s = scores_s * FUSED_BACKWARD if self._is_fused else 0.0
        stream_s = (forward.stream_s - self._cast_s(n_held)) * self._model.backward_traffic
        stream_s += self._accumulate_s(n_params, n_held)
        n_kernels = forward.n_kernels * self._model.backward_kernels
        tensor, shard = forward.tensor, NOTHING if self._layout.keeps_gathered else scattered
        if self._layout.reshard:
            shard += forward.shard
        if self._layout.recompute == "full":
            again = self._blocks_share(stage)
            product_s += forward.product_s * again
            convolution_s += forward.convolution_s * again
            attention_s += forward.attention_s
            stream_s += forward.stream_s * again
            n_kernels += forward.n_kernels
            if self._model.is_traced:
                n_kernels += CHECKPOINT_LAUNCHES * sum(n for _, n in stage.blocks)
            tensor += forward.tensor
        elif self._layout.recompute == "selective" and not self._is_fused:
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

    @property
    def _is_fused(self) -> bool:
        return all(one.is_fused for layer, _ in self._model.groups() for one in layer.attentions)

    def _blocks_share(self, stage: Stage) -> float:
        """Of a stage's forward FLOPs: the output layer is not computed again."""
        total = sum(layer.flops * n for layer, n in stage.layers)
        ends = self._model.head.flops if stage.is_last else 0.0
        return 1.0 - ends / total if total else 1.0

    def _product_s(self, one: Matmul) -> float:
        m, n, k = self._sizes(one)
        return self._times(one) * self._peak_s(m, n, k, one)

    def _product_backward_s(self, one: Matmul) -> float:
        m, n, k = self._sizes(one)
        if one.is_convolution:
            # Both gradients read and write what forward does, in other roles.
            return 2 * self._product_s(one)
        return self._times(one) * (self._peak_s(m, k, n, one) + self._peak_s(k, n, m, one))

    def _times(self, one: Matmul) -> float:
        """How many products of these sizes a rank makes."""
        return one.groups * max(1.0, one.n_experts / self._layout.ep)

    def _sizes(self, one: Matmul) -> tuple[float, float, float]:
        layout = self._layout
        m = one.rows * self._training.micro_batch / layout.cp
        if one.n_experts > 1:
            # Tokens of all ranks that share the experts out meet here.
            m *= layout.ep / one.n_experts
        n = one.n / (layout.tp if one.cut == "columns" else 1)
        k = one.k / (layout.tp if one.cut == "rows" else 1)
        return m, n, k

    def _peak_s(self, m: float, n: float, k: float, one: Matmul) -> float:
        peak = self._convolution_peak if one.is_convolution else self._product_peak
        peak *= self._alignment(one)
        return peak_seconds(
            m,
            n,
            k,
            self._gpus.n_multiprocessors,
            peak,
            self._bandwidth,
            self._precision.element_bytes,
            one.input_elements * self._training.micro_batch / self._layout.cp,
        )

    def _alignment(self, one: Matmul) -> float:
        """Of the rate, what the bytes of its rows leave; a compiler pads them."""
        if one.is_convolution or self._training.is_compiled or self._precision.element_bytes != 2:
            return 1.0
        sizes = [size for size in self._sizes(one)[1:] if size > 8 and size % 8]
        if not sizes:
            return 1.0
        return MISALIGNED[2 if any(size % 2 for size in sizes) else 4]

    def _attention_s(self, layer: Layer) -> float:
        cut = self._layout.tp * self._layout.cp
        return sum(self._scores_s(one) for one in layer.attentions) / cut

    def _scores_s(self, one: Attention) -> float:
        done = 0.5 if one.is_causal and one.is_fused else 1.0
        return done * one.flops * self._training.micro_batch / self._attention_peak

    def _stream_s(self, layer: Layer) -> float:
        layout = self._layout
        moved = layer.traffic_bytes / layout.sequence_cut + layer.traffic_cut_bytes / layout.tp
        if self._training.is_compiled and self._model.is_traced:
            moved *= COMPILED_LOSS if layer is self._model.head else COMPILED_TRAFFIC
        moved += sum(map(self._transposed_bytes, _convolutions(layer)))
        if self._precision.rate == "fp8":
            moved += sum(one.rows * one.k for one in layer.matmuls) * FP8_CAST_BYTES / layout.tp
        return moved * self._training.micro_batch / layout.cp / self._bandwidth

    def _transposed_bytes(self, one: Matmul) -> float:
        """Tensor cores take channels last: what lies otherwise is brought there and back."""
        training, precision = self._training, self._precision
        rate = precision.convolution_rate or precision.rate
        if training.is_channels_last or training.is_compiled or rate == "fp32":
            return 0.0
        elements = (one.input_elements + one.rows * one.n) * one.groups
        return elements * precision.element_bytes * TRANSPOSING_PASSES[rate]

    def _score_stream_s(self, stage: Stage) -> float:
        from hotlap.planner.transformer import SCORE_PASSES

        scores = sum(n * one.n_scores for layer, n in stage.layers for one in layer.attentions)
        moved = scores * SCORE_PASSES * self._precision.element_bytes
        cut = self._layout.tp * self._layout.cp
        return moved * self._training.micro_batch / cut / self._bandwidth
