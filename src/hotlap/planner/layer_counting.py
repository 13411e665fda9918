"""The work of one layer at nominal rates, of one micro-batch on one rank.

It depends on how a layer is cut, not on how data and states are: a search over layouts counts each
layer a few times and looks it up ever after.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from hotlap.planner.cluster import Gpus, peak_flops_per_s
from hotlap.planner.layers import Attention, Eager, Layer, Matmul, Model
from hotlap.planner.products import peak_seconds
from hotlap.planner.training import Training

COMPILED_TRAFFIC = {2: 0.95, 4: 0.85}
"""Of the bytes that operations move one by one, by those of a number: a compiler fuses some of
them, and its kernels are not as good at the rest, least where they mix types. ViT-B, GPT-2 and
ResNet-50 on an H200."""
COMPILED_LOSS = 0.5
"""The same of a loss over many classes: the logits are read in 16 bits, and no copy is written."""
CHANNELS_FIRST = 2.3
"""Times as long as with channels last, for torch's own norms over a batch."""
CHANNELS_FIRST_16BIT = 1.33
"""The same of convolutions in 16 bits, whose kernels for that order are not as good: beside what it
takes to bring images into the other one."""
TF32_START_S = 7.6e-6
"""Of a convolution in TF32, at the rates of a data sheet: 11 µs of an H200's time. Those of
ResNet-50 multiplied for 9.5 ms at a batch of 64 and, with a forward more, for 59.7 ms at 384."""
FP32_ATTENTION = 0.5
"""Of its time in fp32, which no tensor core computes: it loses less to its scores than the kernels
of tensor cores do."""
ATTENTION_TILE = 64
"""Tokens are computed in multiples of it."""
FP8_CAST_BYTES = 8
"""Moved for each number that a product in fp8 takes: read twice, for its scale and its cast, and
written in both orders that the products need, with what its gradient's cast costs in backward."""
MISALIGNED = {4: 0.36, 2: 0.16}
"""Of its rate, a 16-bit product keeps whose rows are no multiple of 16 bytes but of so many: 8,190
columns on an H200, and GPT-2's vocabulary of 50,257 in eager mode. Rows of 8 count as of 4."""
TRANSPOSING_PASSES = 2
"""Over input and output of a convolution, where images do not lie with their channels last: brought
there and back, each is read and written once."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How many ranks share a layer out."""

    tp: int
    cp: int
    ep: int
    sequence: int
    """Of what lies between tensor parallel layers."""


@dataclass(frozen=True, slots=True)
class LayerWork:
    """Seconds at the chip's peaks, one direction."""

    product_s: float
    convolution_s: float
    attention_s: float
    stream_s: float


def _rounded_up(n_tokens: int) -> float:
    """What is computed for each token."""
    return -(-n_tokens // ATTENTION_TILE) * ATTENTION_TILE / n_tokens


def _plain(layer: Layer) -> Iterator[Matmul]:
    return (one for one in layer.matmuls if not one.is_convolution)


def _convolutions(layer: Layer) -> Iterator[Matmul]:
    return (one for one in layer.matmuls if one.is_convolution)


@lru_cache(maxsize=256)
def layer_counter(model: Model, gpus: Gpus, training: Training, cut: Cut) -> LayerCounter:
    """One for all layouts that cut layers alike."""
    return LayerCounter(model, gpus, training, cut)


class LayerCounter:
    """Counts layers of one model, and remembers them."""

    def __init__(self, model: Model, gpus: Gpus, training: Training, cut: Cut) -> None:
        self._model, self._gpus, self._training, self._cut = model, gpus, training, cut
        self._precision = training.precision
        products = peak_flops_per_s(gpus.chip, self._precision.rate)
        self._product_peak, self._convolution_peak = products, self._peak_of_convolutions(products)
        # Utilisation is against the rate that most of the work runs at.
        self.peak = self._convolution_peak if model.is_convolutional else products
        # Attention and all else that is no linear layer stays in 16 bits.
        other = "16bit" if self._precision.rate == "fp8" else self._precision.rate
        self._attention_peak = peak_flops_per_s(gpus.chip, other)
        self._bandwidth = gpus.chip.bandwidth_bytes_per_s
        self.is_fused = all(a.is_fused for layer, _ in model.groups() for a in layer.attentions)
        is_in_order = training.is_channels_last or training.is_compiled
        is_16bit = self._precision.element_bytes == 2
        self._order = CHANNELS_FIRST_16BIT if is_16bit and not is_in_order else 1.0
        self.backward_traffic = self._backward_traffic()
        self._forward: dict[Layer, LayerWork] = {}
        self._backward: dict[Layer, LayerWork] = {}

    def forward(self, layer: Layer) -> LayerWork:
        """Once through it."""
        if layer not in self._forward:
            self._forward[layer] = LayerWork(
                sum(self._product_s(one) for one in _plain(layer)),
                self._convolutions_s(layer),
                self._attention_s(layer),
                self._stream_s(layer),
            )
        return self._forward[layer]

    def backward(self, layer: Layer) -> LayerWork:
        """The gradients of its products; attention's are as many again as forward's scores."""
        if layer not in self._backward:
            self._backward[layer] = LayerWork(
                sum(self._product_backward_s(one) for one in _plain(layer)),
                # Both gradients read and write what forward does, in other roles.
                2 * self._convolutions_s(layer),
                self._attention_s(layer),
                0.0,
            )
        return self._backward[layer]

    def _peak_of_convolutions(self, products: float) -> float:
        rate = self._precision.convolution_rate
        has_it = rate != "tf32" or self._gpus.chip.tf32_flops_per_s
        return peak_flops_per_s(self._gpus.chip, rate) if rate and has_it else products

    def _convolutions_s(self, layer: Layer) -> float:
        """Those of TF32 need large batches to come near their rate: they start slowly."""
        found = list(_convolutions(layer))
        start_s = TF32_START_S if self._precision.convolution_rate == "tf32" else 0.0
        return self._order * sum(map(self._product_s, found)) + start_s * len(found)

    def _product_s(self, one: Matmul) -> float:
        m, n, k = self._sizes(one)
        return self._times(one) * self._peak_s(m, n, k, one)

    def _product_backward_s(self, one: Matmul) -> float:
        m, n, k = self._sizes(one)
        both = self._peak_s(m, k, n, one) + self._peak_s(k, n, m, one)
        return self._times(one) * both

    def _times(self, one: Matmul) -> float:
        """How many products of these sizes a rank makes."""
        return one.groups * max(1.0, one.n_experts / self._cut.ep)

    def _sizes(self, one: Matmul) -> tuple[float, float, float]:
        cut = self._cut
        m = one.rows * self._training.micro_batch / cut.cp
        if one.n_experts > 1:
            # Tokens of all ranks that share the experts out meet here.
            m *= cut.ep / one.n_experts
        n = one.n / (cut.tp if one.cut == "columns" else 1)
        k = one.k / (cut.tp if one.cut == "rows" else 1)
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
            one.input_elements * self._training.micro_batch / self._cut.cp,
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
        parts = self._cut.tp * self._cut.cp
        return sum(self._scores_s(one) for one in layer.attentions) / parts

    def _scores_s(self, one: Attention) -> float:
        done = 0.5 if one.is_causal and one.is_fused else 1.0
        if one.is_fused and self._precision.rate == "fp32":
            done *= FP32_ATTENTION
        if one.is_fused:
            done *= _rounded_up(one.n_queries) * _rounded_up(one.n_keys)
        return done * one.flops * self._training.micro_batch / self._attention_peak

    def _stream_s(self, layer: Layer) -> float:
        cut = self._cut
        moved = layer.traffic_bytes / cut.sequence + layer.traffic_cut_bytes / cut.tp
        if self._training.is_compiled and self._model.is_traced:
            moved = self._compiled_bytes(layer, moved)
        else:
            whole = layer.traffic_bytes + layer.traffic_cut_bytes
            moved += self._eager_bytes(layer.eager) * (moved / whole if whole else 1.0)
        moved += sum(map(self._transposed_bytes, _convolutions(layer)))
        if self._precision.rate == "fp8":
            moved += sum(one.rows * one.k for one in layer.matmuls) * FP8_CAST_BYTES / cut.tp
        return moved * self._training.micro_batch / cut.cp / self._bandwidth

    def _compiled_bytes(self, layer: Layer, moved: float) -> float:
        if layer is not self._model.head:
            return moved * COMPILED_TRAFFIC[4 if self._precision.element_bytes == 4 else 2]
        if self._training.is_loss_compiled:
            return moved * COMPILED_LOSS
        return moved + self._eager_bytes(layer.eager)

    def _eager_bytes(self, eager: Eager) -> float:
        slower = 1.0 if self._training.is_channels_last else CHANNELS_FIRST
        return eager.more_bytes + slower * eager.batch_norm_bytes

    def _backward_traffic(self) -> float:
        """In the time of forward's."""
        model = self._model
        if not model.is_traced or self._training.is_compiled:
            return model.backward_traffic
        moved = cost = 0.0
        for layer, n in model.groups():
            moved += n * (layer.traffic_bytes + layer.traffic_cut_bytes)
            cost += n * self._eager_bytes(layer.eager)
        backward = moved * model.backward_traffic + self._eager_bytes(model.backward_eager)
        return backward / (moved + cost)

    def _transposed_bytes(self, one: Matmul) -> float:
        """Tensor cores take channels last: what lies otherwise is brought there and back."""
        training, precision = self._training, self._precision
        rate = precision.convolution_rate or precision.rate
        if training.is_channels_last or training.is_compiled or rate == "fp32":
            return 0.0
        elements = (one.input_elements + one.rows * one.n) * one.groups
        return elements * precision.element_bytes * TRANSPOSING_PASSES
