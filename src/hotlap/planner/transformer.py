"""A transformer from its sizes: parameters, products, memory traffic and what is kept for backward.

Bytes of activations follow Korthikanti et al. 2022 (https://arxiv.org/abs/2205.05198), extended to
grouped queries, gated layers and experts: for GPT's block in 16 bits with dropout they come to
s·b·h·(34 + 5·a·s/h).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal

from hotlap.errors import UsageError
from hotlap.planner.layers import Attention, Kept, Layer, Matmul, Model

SCORE_PASSES = 6.5
"""Times that plain attention moves its scores through memory, forward: written by the first
product (1), read and written by a fused scale, mask and softmax (2) and by dropout with its mask
(2.5), read by the second product (1)."""
RESIDUAL_PASSES = 7
"""Times that half a block moves the width of the residual stream through memory, forward: a norm
(2), a sum with the residual (3), a bias and a change of order (2). Each is about a kernel."""
COMPILED_PASSES = 5
"""The same where the norm and the sum are one kernel."""
Gate = Literal["plain", "fused", "lean"]
GATES: dict[Gate, int] = {"plain": 4, "fused": 3, "lean": 2}
"""What a gated layer keeps, in tensors of its inner width: the gate, the other factor, their
product, and, where no kernel does all of it, what the function gives. A lean kernel (xFormers')
computes the product again."""
MOST_LAYERS = 100_000
MAY_BE_0 = (
    *("n_kv_heads", "head_width", "n_positions", "n_shared_experts"),
    *("expert_ffn", "n_dense_layers", "n_decoder_layers"),
)
"""Sizes that stand for 'none', or for one that follows from others."""


@dataclass(frozen=True, slots=True)
class TransformerSizes:
    """What decides a transformer's cost."""

    n_layers: int
    hidden: int
    n_heads: int
    ffn: int
    vocab: int
    n_kv_heads: int = 0
    """0 stands for as many as heads."""
    head_width: int = 0
    """0 stands for hidden / heads."""
    is_gated: bool = False
    """Three matrices in the feed-forward part (SwiGLU), not two."""
    is_tied: bool = True
    """The output layer is the token embedding."""
    has_bias: bool = True
    n_positions: int = 0
    """Learned; 0 for positions that have no parameters."""
    is_causal: bool = True
    n_experts: int = 1
    experts_per_token: int = 1
    n_shared_experts: int = 0
    expert_ffn: int = 0
    """0 stands for ffn."""
    n_dense_layers: int = 0
    """Of a model with experts: the first layers, which have none."""
    n_decoder_layers: int = 0
    """Of an encoder-decoder: n_layers is the encoder's number then."""
    has_dropout: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in MAY_BE_0 else 1
            if isinstance(value, int) and not isinstance(value, bool) and value < least:
                raise UsageError(f"{field.name} is {value}; it has to be at least {least}")
        for name, n in (("layers", self.n_layers), ("decoder layers", self.n_decoder_layers)):
            if n > MOST_LAYERS:
                raise UsageError(f"{name} are {n}; {MOST_LAYERS:,} are the most")
        if not self.head_width and self.hidden % self.n_heads:
            raise UsageError(
                f"heads is {self.n_heads}; it has to divide hidden, which is {self.hidden}"
            )
        if self.n_kv_heads and self.n_heads % self.n_kv_heads:
            raise UsageError(
                f"key-value heads are {self.n_kv_heads}; they have to divide heads, {self.n_heads}"
            )
        if self.experts_per_token > self.n_experts:
            raise UsageError(
                f"experts per token are {self.experts_per_token}; there are {self.n_experts} "
                "experts"
            )

    @property
    def query_width(self) -> int:
        """Of all heads together."""
        return self.n_heads * (self.head_width or self.hidden // self.n_heads)

    @property
    def kv_width(self) -> int:
        """Of all keys together, and of all values."""
        return self.query_width * (self.n_kv_heads or self.n_heads) // self.n_heads


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """Bytes of an activation, and how attention is done."""

    element_bytes: int = 2
    norm_bytes: int = 2
    """Of the residual stream and what norms give: 4 under autocast."""
    fused_attention: bool = True
    gate: Gate = "fused"
    is_compiled: bool = False
    """Neighbouring element-wise kernels are one."""


def transformer(name: str, sizes: TransformerSizes, seq: int, how: Arithmetic) -> Model:
    """The model for sequences of one length."""
    build = _Builder(sizes, seq, how)
    if sizes.n_decoder_layers:
        encoder = replace(sizes, is_causal=False)
        blocks = (_Builder(encoder, seq, how).block("encoder", has_experts=False),) * sizes.n_layers
        blocks += (build.block("decoder", has_experts=False, has_cross=True),) * (
            sizes.n_decoder_layers
        )
    else:
        dense = build.block("block", has_experts=False)
        sparse = build.block("block", has_experts=True) if sizes.n_experts > 1 else dense
        n_dense = min(sizes.n_dense_layers, sizes.n_layers) if sizes.n_experts > 1 else 0
        blocks = (dense,) * n_dense + (sparse,) * (sizes.n_layers - n_dense)
    embedding = sizes.vocab * sizes.hidden
    logits = seq * sizes.vocab * _logit_bytes(how)
    return Model(
        name=name,
        unit="sequences",
        tokens_per_sample=seq,
        stem=build.stem(),
        blocks=blocks,
        head=build.head(),
        logits_bytes=float(logits),
        logits_evaluated_bytes=float(logits - 2 * how.element_bytes * seq * sizes.vocab),
        tied_params=embedding if sizes.is_tied else 0,
        n_heads=sizes.n_heads,
        n_kv_heads=sizes.n_kv_heads or sizes.n_heads,
        n_experts=sizes.n_experts,
        is_gated=sizes.is_gated,
        widest_bytes=float(seq * how.element_bytes * (sizes.ffn * 2 + sizes.hidden * 2)),
    )


def _logit_bytes(how: Arithmetic) -> int:
    """At the loss: the output, logarithms of it, and gradients, of which the loss's is in fp32.

    Trainers that hold weights in 16 bits compute the loss in place, in an fp32 copy.
    """
    holds_16_bits = how.norm_bytes == 2
    return (1 if holds_16_bits else 2) * how.element_bytes + 4 + 4


class _Builder:
    """Layers of one kind of transformer for one length of sequence."""

    def __init__(self, sizes: TransformerSizes, seq: int, how: Arithmetic) -> None:
        self._sizes, self._seq, self._how = sizes, seq, how
        self._norm_params = sizes.hidden * (2 if sizes.has_bias else 1)

    def stem(self) -> Layer:
        """Token and position embeddings."""
        sizes, seq, size = self._sizes, self._seq, self._how.norm_bytes
        kept = Kept(seq * (8 + (sizes.hidden if sizes.has_dropout else 0)))
        return Layer(
            "embedding", sizes.n_positions * sizes.hidden, sizes.vocab * sizes.hidden, 0, (), (),
            traffic_bytes=float(3 * seq * sizes.hidden * size), traffic_cut_bytes=0.0, n_kernels=4,
            kept=kept, kept_selective=kept, input_bytes=8.0 * seq,
            n_tensor_syncs=1, sync_bytes=float(seq * sizes.hidden * size),
        )  # fmt: skip

    def head(self) -> Layer:
        """The last norm and the output layer; what its logits keep is counted apart."""
        sizes, seq, how = self._sizes, self._seq, self._how
        width = seq * sizes.hidden
        kept = Kept(float(width * (how.norm_bytes + how.element_bytes)))
        return Layer(
            "output", self._norm_params, sizes.vocab * sizes.hidden, 0,
            (Matmul(seq, sizes.vocab, sizes.hidden, "columns"),), (),
            traffic_bytes=float(2 * width * how.norm_bytes),
            traffic_cut_bytes=float(seq * sizes.vocab * (how.element_bytes + 4 * 3)),
            n_kernels=8, kept=kept, kept_selective=kept,
            input_bytes=float(width * how.norm_bytes),
        )  # fmt: skip

    def block(self, name: str, has_experts: bool, has_cross: bool = False) -> Layer:
        """Attention (two of them in a decoder that looks at an encoder) and feed-forward."""
        parts = [self._attention(self._sizes.is_causal)]
        if has_cross:
            parts.append(self._attention(False))
        parts.append(self._experts() if has_experts else self._feed_forward(self._sizes.ffn))
        width = float(self._seq * self._sizes.hidden * self._how.norm_bytes)
        return replace(_joined(name, parts), input_bytes=width, sync_bytes=width)

    def _attention(self, is_causal: bool) -> Layer:
        sizes, seq, how = self._sizes, self._seq, self._how
        q, kv, h, size = sizes.query_width, sizes.kv_width, sizes.hidden, how.element_bytes
        attention = Attention(
            seq, seq, sizes.n_heads, q // sizes.n_heads, is_causal, how.fused_attention
        )
        scores = 0.0 if how.fused_attention else attention.n_scores
        score_bytes = scores * (2 * size + 1 if sizes.has_dropout else size)
        mask = seq * h if sizes.has_dropout else 0
        whole = seq * h * (how.norm_bytes + size) + mask
        cut = seq * size * (q + 2 * kv + q) + (4.0 * seq * sizes.n_heads if not scores else 0.0)
        bias = (q + 2 * kv) if sizes.has_bias else 0
        n_passes = COMPILED_PASSES if how.is_compiled else RESIDUAL_PASSES
        return Layer(
            "attention",
            self._norm_params + (h if sizes.has_bias else 0), h * (q + 2 * kv) + bias + q * h, 0,
            (Matmul(seq, q + 2 * kv, h, "columns"), Matmul(seq, h, q, "rows")),
            (attention,),
            traffic_bytes=float(n_passes * seq * h * how.norm_bytes + 2 * mask),
            traffic_cut_bytes=float(2 * seq * (q + 2 * kv) * size) + SCORE_PASSES * scores * size,
            n_kernels=4 + (1 if how.fused_attention else 6) + n_passes + sizes.has_dropout,
            kept=Kept(whole, cut + score_bytes), kept_selective=Kept(whole, cut),
            input_bytes=0.0, n_tensor_syncs=1,
        )  # fmt: skip

    def _feed_forward(self, ffn: int) -> Layer:
        sizes, seq, how = self._sizes, self._seq, self._how
        h, size = sizes.hidden, how.element_bytes
        n_up = 2 if sizes.is_gated else 1
        mask = seq * h if sizes.has_dropout else 0
        is_plain = how.gate == "plain" and not how.is_compiled
        gate = GATES["fused" if how.gate == "plain" and how.is_compiled else how.gate]
        kept = Kept(
            float(seq * h * (how.norm_bytes + size) + mask),
            float(seq * ffn * size * (gate if sizes.is_gated else 2)),
        )
        bias = n_up * ffn if sizes.has_bias else 0
        n_inner = (5 if is_plain else 3) if sizes.is_gated else 2
        n_passes = COMPILED_PASSES if how.is_compiled else RESIDUAL_PASSES
        return Layer(
            "feed-forward",
            self._norm_params + (h if sizes.has_bias else 0), (n_up + 1) * h * ffn + bias, 0,
            (Matmul(seq, n_up * ffn, h, "columns"), Matmul(seq, h, ffn, "rows")), (),
            traffic_bytes=float(n_passes * seq * h * how.norm_bytes + 2 * mask),
            traffic_cut_bytes=float(n_inner * seq * ffn * size),
            n_kernels=3 + (n_up if is_plain else 1) + n_passes + sizes.has_dropout,
            kept=kept, kept_selective=kept, input_bytes=0.0, n_tensor_syncs=1,
        )  # fmt: skip

    def _experts(self) -> Layer:
        """A router, experts of which each token meets a few, and experts that all tokens meet."""
        sizes, seq, how = self._sizes, self._seq, self._how
        one = self._feed_forward(sizes.expert_ffn or sizes.ffn)
        per_token, n = sizes.experts_per_token, sizes.n_experts
        rows = seq * per_token
        routed = tuple(replace(matmul, rows=rows, n_experts=n) for matmul in one.matmuls)
        shared = sizes.n_shared_experts
        always = tuple(
            replace(matmul, n=matmul.n * shared) if matmul.cut == "columns"
            else replace(matmul, k=matmul.k * shared)
            for matmul in one.matmuls if shared
        )  # fmt: skip
        sent_bytes = float(rows * sizes.hidden * how.element_bytes)
        factor = per_token + shared
        kept = Kept(one.kept.whole + 2 * sent_bytes, one.kept.cut * factor)
        return replace(
            one,
            name="experts",
            n_params=self._norm_params + sizes.hidden * n,
            n_params_cut=one.n_params_cut * shared,
            n_params_expert=one.n_params_cut * n,
            matmuls=(Matmul(seq, n, sizes.hidden), *routed, *always),
            traffic_bytes=one.traffic_bytes + 4 * sent_bytes,
            traffic_cut_bytes=one.traffic_cut_bytes * factor,
            n_kernels=one.n_kernels + 12,
            kept=kept,
            kept_selective=kept,
            all_to_all_bytes=sent_bytes,
        )


def _joined(name: str, parts: list[Layer]) -> Layer:
    def kept(which: str) -> Kept:
        values = [getattr(part, which) for part in parts]
        return Kept(sum(value.whole for value in values), sum(value.cut for value in values))

    return Layer(
        name,
        sum(part.n_params for part in parts),
        sum(part.n_params_cut for part in parts),
        sum(part.n_params_expert for part in parts),
        tuple(matmul for part in parts for matmul in part.matmuls),
        tuple(attention for part in parts for attention in part.attentions),
        traffic_bytes=sum(part.traffic_bytes for part in parts),
        traffic_cut_bytes=sum(part.traffic_cut_bytes for part in parts),
        n_kernels=sum(part.n_kernels for part in parts),
        kept=kept("kept"),
        kept_selective=kept("kept_selective"),
        input_bytes=0.0,
        n_tensor_syncs=sum(part.n_tensor_syncs for part in parts),
        all_to_all_bytes=sum(part.all_to_all_bytes for part in parts),
    )
