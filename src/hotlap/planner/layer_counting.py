"""The work of one layer at nominal rates, of one micro-batch on one rank.

It depends on how a layer is cut, not on how data and states are: a search over layouts counts each
layer a few times and looks it up ever after.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from hotlap.planner.cluster import Gpus, peak_flops_per_s
from hotlap.planner.layers import Attention, Layer, Matmul, Model
from hotlap.planner.products import peak_seconds
from hotlap.planner.training import Training

COMPILED_TRAFFIC = 0.74
"""Of the bytes that element-wise kernels move in eager mode: ResNet-50 in bf16 moves 211 MB an
image where its norms and activations are fused, 285 MB where they are not."""
COMPILED_LOSS = 0.5
"""The same of a loss over many classes: the logits are read in 16 bits, and no copy is written."""
OWN_BATCH_NORM = 3.0
"""Torch's own norm over a batch, which it takes for bf16 in eager mode, in the time that its bytes
take, read and written once: it reads them for the sums first, and is slow at that. For other types
it has cuDNN's. ResNet-50 on an H200, batch 256, with checkpoints."""
FP32_BACKWARD = 1.3
"""Products in fp32, which no tensor core computes: a gradient takes so much longer than a forward.
ViT-B and GPT-2 on an H200 compute their blocks again at 0.95 of the peak."""
FP32_ATTENTION = 0.6
"""The same of fused attention: it loses less to its scores than the kernels of tensor cores do."""
FP8_CAST_BYTES = 8
"""Moved for each number that a product in fp8 takes: read twice, for its scale and its cast, and
written in both orders that the products need, with what its gradient's cast costs in backward."""
MISALIGNED = {4: 0.36, 2: 0.16}
"""Of its rate, a 16-bit product keeps whose rows are no multiple of 16 bytes but of so many: 8,190
columns on an H200, and GPT-2's vocabulary of 50,257 in eager mode. Rows of 8 count as of 4."""
TRANSPOSING_PASSES = {"16bit": 9.5, "fp8": 9.5, "tf32": 2.6}
"""Over input and output of a convolution, forward, where images do not lie with their channels
last: ResNet-50 on an H200, batch 128, 2,248 img/s in bf16 and 2,069 in TF32, torch's default."""


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
        self._forward: dict[Layer, LayerWork] = {}
        self._backward: dict[Layer, LayerWork] = {}

    def forward(self, layer: Layer) -> LayerWork:
        """Once through it."""
        if layer not in self._forward:
            self._forward[layer] = LayerWork(
                sum(self._product_s(one) for one in _plain(layer)),
                sum(self._product_s(one) for one in _convolutions(layer)),
                self._attention_s(layer),
                self._stream_s(layer),
            )
        return self._forward[layer]

    def backward(self, layer: Layer) -> LayerWork:
        """The gradients of its products; attention's are as many again as forward's scores."""
        if layer not in self._backward:
            self._backward[layer] = LayerWork(
                sum(self._product_backward_s(one) for one in _plain(layer)),
                sum(self._product_backward_s(one) for one in _convolutions(layer)),
                self._attention_s(layer),
                0.0,
            )
        return self._backward[layer]

    def _peak_of_convolutions(self, products: float) -> float:
        rate = self._precision.convolution_rate
        has_it = rate != "tf32" or self._gpus.chip.tf32_flops_per_s
        return peak_flops_per_s(self._gpus.chip, rate) if rate and has_it else products

    def _product_s(self, one: Matmul) -> float:
        m, n, k = self._sizes(one)
        return self._times(one) * self._peak_s(m, n, k, one)

    def _product_backward_s(self, one: Matmul) -> float:
        m, n, k = self._sizes(one)
        if one.is_convolution:
            # Both gradients read and write what forward does, in other roles.
            return 2 * self._product_s(one)
        slower = FP32_BACKWARD if self._precision.rate == "fp32" else 1.0
        both = self._peak_s(m, k, n, one) + self._peak_s(k, n, m, one)
        return slower * self._times(one) * both

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
        return done * one.flops * self._training.micro_batch / self._attention_peak

    def _stream_s(self, layer: Layer) -> float:
        cut = self._cut
        moved = layer.traffic_bytes / cut.sequence + layer.traffic_cut_bytes / cut.tp
        if self._training.is_compiled and self._model.is_traced:
            moved *= COMPILED_LOSS if layer is self._model.head else COMPILED_TRAFFIC
        elif self._training.precision_name in ("bf16", "pure-bf16"):
            moved += (OWN_BATCH_NORM - 1) * layer.batch_norm_bytes
        moved += sum(map(self._transposed_bytes, _convolutions(layer)))
        if self._precision.rate == "fp8":
            moved += sum(one.rows * one.k for one in layer.matmuls) * FP8_CAST_BYTES / cut.tp
        return moved * self._training.micro_batch / cut.cp / self._bandwidth

    def _transposed_bytes(self, one: Matmul) -> float:
        """Tensor cores take channels last: what lies otherwise is brought there and back."""
        training, precision = self._training, self._precision
        rate = precision.convolution_rate or precision.rate
        if training.is_channels_last or training.is_compiled or rate == "fp32":
            return 0.0
        elements = (one.input_elements + one.rows * one.n) * one.groups
        return elements * precision.element_bytes * TRANSPOSING_PASSES[rate]
