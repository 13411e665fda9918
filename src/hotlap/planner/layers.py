"""A model as the planner sees it: layers that multiply, move and keep numbers.

All amounts are those of one sample (a sequence, an image) going forward once, on one rank that
holds the whole layer. What tensor parallelism divides among its ranks is counted apart.

Matmul      one product of matrices with weights
Attention   the products between tokens
Kept        what stays in memory for backward, by how much is computed again
Eager       what kernels cost that nothing compiles
Recomputed  what is computed again
Layer       one block, or what stands before or after the blocks
Moment      what is alive at a time, of a traced step
Model       the layers in order, and what limits the ways to cut them
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

Cut = Literal["none", "columns", "rows"]
"""Which side of the weights tensor parallelism cuts: 'columns' is the output, 'rows' the input."""

Unit = Literal["sequences", "images", "samples"]


@dataclass(frozen=True, slots=True)
class Matmul:
    """[rows, k] times [k, n]; backward has two more of the same size."""

    rows: float
    """Of one sample: its tokens, or the pixels of its output."""
    n: int
    k: int
    cut: Cut = "none"
    n_experts: int = 1
    """Among which the rows are shared out, each with weights of its own."""
    groups: int = 1
    """So many products of these sizes: side by side in a grouped convolution, one after the other
    in a recurrent layer."""
    input_elements: float = 0.0
    """Of a convolution, whose windows overlap: what it really reads of a sample. 0 elsewhere."""

    @property
    def is_convolution(self) -> bool:
        """Whether its rows are windows over an image."""
        return self.input_elements > 0

    @property
    def flops(self) -> float:
        """Forward, 2 a multiply-add."""
        return 2.0 * self.rows * self.n * self.k * self.groups


@dataclass(frozen=True, slots=True)
class Attention:
    """Scores between tokens and the sums weighted by them; heads are divided by tensor parallel."""

    n_queries: int
    n_keys: int
    n_heads: int
    head_width: int
    is_causal: bool
    is_fused: bool
    """In one kernel that keeps no scores (flash attention); else they go through memory."""

    @property
    def flops(self) -> float:
        """Forward, by convention without a discount for the half that a causal mask leaves out."""
        return 4.0 * self.n_queries * self.n_keys * self.n_heads * self.head_width

    @property
    def n_scores(self) -> float:
        """How many scores there are."""
        return float(self.n_queries) * self.n_keys * self.n_heads


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes kept for backward: on every rank of tensor parallelism, and divided among them."""

    whole: float = 0.0
    cut: float = 0.0


@dataclass(frozen=True, slots=True)
class Eager:
    """What kernels cost beside the bytes that they move, as bytes, where nothing compiles them."""

    more_bytes: float = 0.0
    """Less than none, where they are faster than usual or counted below."""
    batch_norm_bytes: float = 0.0
    """Of torch's own norms over a batch, where channels lie last."""


@dataclass(frozen=True, slots=True)
class Recomputed:
    """What full recomputation computes again, as shares of what forward does.

    It ends where all that backward needs is there: the last product of a block mostly is not.
    """

    products: float
    traffic: float
    kernels: float


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One block, or what stands before or after the blocks; equal blocks are one object."""

    name: str
    n_params: int
    """On every rank of tensor parallelism: norms, and biases that are added after the sum."""
    n_params_cut: int
    """Divided among the ranks of tensor parallelism."""
    n_params_expert: int
    """Divided among the ranks of expert parallelism, and of tensor parallelism."""
    matmuls: tuple[Matmul, ...]
    attentions: tuple[Attention, ...]
    traffic_bytes: float
    """Read and written by all that is bound by bandwidth."""
    traffic_cut_bytes: float
    n_kernels: int
    """Launched forward."""
    kept: Kept
    kept_selective: Kept
    """Where attention is computed again and nothing else."""
    input_bytes: float
    """What full recomputation keeps, and what a pipeline sends."""
    n_tensor_syncs: int = 0
    """Sums over the ranks of tensor parallelism, forward."""
    sync_bytes: float = 0.0
    """Of each of them."""
    eager: Eager = Eager()
    """Of a traced layer."""
    all_to_all_bytes: float = 0.0
    """Of each of the two that bring tokens to their experts and back, forward."""

    @property
    def total_params(self) -> int:
        """On one rank that holds all of it."""
        return self.n_params + self.n_params_cut + self.n_params_expert

    @property
    def flops(self) -> float:
        """Forward."""
        products = sum(matmul.flops for matmul in self.matmuls)
        return products + sum(attention.flops for attention in self.attentions)


@dataclass(frozen=True, slots=True)
class Moment:
    """Of a traced step: what is alive beside weights and the optimizer's state."""

    per_sample_bytes: float
    fixed_bytes: float
    """Gradients so far, and weights cast for computing."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The layers in order, and what limits the ways to cut them; the same as itself alone."""

    name: str
    unit: Unit
    tokens_per_sample: int
    """1 where a sample has none."""
    stem: Layer
    blocks: tuple[Layer, ...]
    head: Layer
    logits_bytes: float
    """Of a sample: the outputs and what the loss keeps and makes of them."""
    logits_evaluated_bytes: float
    """The same without gradients."""
    tied_params: int
    """Shared by stem and head: counted once, except where a pipeline parts them."""
    n_heads: int | None
    """What tensor parallelism has to divide; None where nothing says how to cut the layers."""
    n_kv_heads: int | None
    n_experts: int
    buffer_bytes: int = 0
    widest_bytes: float = 0.0
    """The two largest tensors of one sample that evaluation holds at a time."""
    is_traced: bool = False
    is_gated: bool = False
    """Its feed-forward parts have a gate."""
    moments: tuple[Moment, ...] = ()
    """The worst of a traced step, each for some batch; none where that is not known."""
    moments_recomputed: tuple[Moment, ...] = ()
    """The same where blocks are computed again."""
    backward_traffic: float = 1.5
    """Bytes that kernels bound by bandwidth move backward for each one forward."""
    backward_eager: Eager = Eager()
    """Of a traced model."""
    backward_kernels: float = 2.0
    """Launched backward for each one forward."""
    compiled_share: float = 1.0
    """Of all kernels of a traced step, those that a compiler does not make part of another one."""
    recomputed: Recomputed | None = None
    """Of a traced model."""
    output_bytes: float = 0.0
    """Of a traced model and a sample: the logits alone."""
    sharded: Model | None = None
    """The same as FSDP computes it, where that differs: it casts all there is to 16 bits, where
    autocast leaves the residual stream in fp32."""

    def under(self, shard: int) -> Model:
        """As it is computed over so many shards."""
        return self.sharded if self.sharded and shard > 1 else self

    @property
    def n_params(self) -> int:
        """Each counted once."""
        return sum(layer.total_params * n for layer, n in self.groups()) - self.tied_params

    @property
    def flops(self) -> float:
        """Of one sample, forward."""
        return sum(layer.flops * n for layer, n in self.groups())

    @property
    def has_convolutions(self) -> bool:
        """Whether it is made for images."""
        return any(one.is_convolution for layer, _ in self.groups() for one in layer.matmuls)

    @property
    def is_convolutional(self) -> bool:
        """Whether convolutions are most of it."""
        found = sum(
            n * one.flops
            for layer, n in self.groups()
            for one in layer.matmuls
            if one.is_convolution
        )
        return found > self.flops / 2

    @property
    def n_active_params(self) -> int:
        """That one token meets: of the experts, those it is sent to."""
        idle = 0.0
        for layer, n in self.groups():
            experts = [matmul for matmul in layer.matmuls if matmul.n_experts > 1]
            if experts:
                sent = experts[0].rows / self.tokens_per_sample
                idle += n * layer.n_params_expert * (1 - sent / experts[0].n_experts)
        return self.n_params - round(idle)

    def groups(self) -> Iterator[tuple[Layer, int]]:
        """Equal neighbours as one, with their number."""
        yield self.stem, 1
        for layer, same in groupby(self.blocks):
            yield layer, len(list(same))
        yield self.head, 1
