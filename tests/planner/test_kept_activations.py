"""What a layer keeps for backward, against what torch's autograd really saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hotlap.planner.layout import Layout
from hotlap.planner.memory import GIB, training_memory
from hotlap.planner.stages import stages
from hotlap.planner.training import Training
from hotlap.planner.transformer import Arithmetic, Gate, TransformerSizes, transformer

SEQ, HIDDEN, FFN, HEADS, KV_HEADS = 32, 64, 176, 4, 2


class Together(torch.autograd.Function):
    """A gate in one kernel, which keeps what it is given and nothing else."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, out: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        with torch.enable_grad():
            given = gate.detach().requires_grad_(), up.detach().requires_grad_()
            product = F.silu(given[0]) * given[1]
        return torch.autograd.grad(product, given, out)  # type: ignore[return-value]


class Lean(torch.autograd.Function):
    """The same with the layer that follows: the product is made again for its gradient."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up, down)
        return F.linear(F.silu(gate) * up, down)

    @staticmethod
    def backward(ctx: Any, out: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            given = tuple(one.detach().requires_grad_() for one in ctx.saved_tensors)
            product = F.linear(F.silu(given[0]) * given[1], given[2])
        return torch.autograd.grad(product, given, out)


class Block(nn.Module):
    """Llama's, but for its norms: torch's RMSNorm is several kernels on a CPU, one on a GPU."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.how = gate
        width = HIDDEN // HEADS
        self.norms = nn.ModuleList(nn.LayerNorm(HIDDEN, bias=False) for _ in range(2))
        self.queries = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.keys, self.values = (nn.Linear(HIDDEN, KV_HEADS * width, bias=False) for _ in range(2))
        self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.gate, self.up = (nn.Linear(HIDDEN, FFN, bias=False) for _ in range(2))
        self.down = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.out(self.attention(self.norms[0](x)))
        y = self.norms[1](x)
        gate, up = self.gate(y), self.up(y)
        if self.how == "lean":
            return x + Lean.apply(gate, up, self.down.weight)
        product = Together.apply(gate, up) if self.how == "fused" else F.silu(gate) * up
        return x + self.down(product)

    def attention(self, x: Tensor) -> Tensor:
        def heads(y: Tensor) -> Tensor:
            return y.view(1, SEQ, -1, HIDDEN // HEADS).transpose(1, 2)

        q, k, v = heads(self.queries(x)), heads(self.keys(x)), heads(self.values(x))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return y.transpose(1, 2).reshape(1, SEQ, HIDDEN)


def saved_bytes(forward: Callable[[Tensor], Tensor], parameters: list[nn.Parameter]) -> int:
    """Of all that autograd keeps, each piece of memory once, weights left out."""
    weights = {one.untyped_storage().data_ptr() for one in parameters}
    kept: dict[int, Tensor] = {}

    def keep(one: Tensor) -> Tensor:
        storage = one.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = one
        return one

    x = torch.randn(1, SEQ, HIDDEN, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
        out = forward(x)
    total = sum(one.untyped_storage().nbytes() for one in kept.values())
    out.sum().backward()
    return total


@pytest.mark.parametrize("gate", ["plain", "fused", "lean"])
def test_a_gated_block_keeps_what_autograd_saves(gate: Gate) -> None:
    block = Block(gate)
    saved = saved_bytes(block, list(block.parameters()))
    sizes = TransformerSizes(
        1, HIDDEN, HEADS, FFN, 512, n_kv_heads=KV_HEADS, is_gated=True, has_bias=False
    )
    kept = transformer("one", sizes, SEQ, Arithmetic(4, 4, gate=gate)).blocks[0].kept
    # A norm keeps two numbers for each token, which are not counted; attention its random state.
    assert saved - (kept.whole + kept.cut) == pytest.approx(2 * 2 * 4 * SEQ, abs=16)


def test_llama_3_is_cut_with_a_block_less_at_both_ends() -> None:
    sizes = TransformerSizes(126, 512, 8, 1024, 1000)
    model = transformer("Llama 3", sizes, 64, Arithmetic())
    for v in (1, 8):
        layout = Layout(pp=16, v=v, schedule="interleaved" if v > 1 else "1f1b")
        held = [sum(n for _, n in stage.blocks) for stage in stages(model, layout)]
        assert held == [7, *[8] * 14, 7]


@pytest.mark.parametrize(("n_blocks", "pp"), [(70, 12), (13, 4), (5, 4), (96, 7), (8, 8), (9, 2)])
def test_no_block_is_lost_and_ends_never_have_more(n_blocks: int, pp: int) -> None:
    sizes = TransformerSizes(n_blocks, 64, 8, 128, 1000)
    layout = Layout(pp=pp)
    every = stages(transformer("one", sizes, 64, Arithmetic()), layout)
    held = [sum(n for _, n in stage.blocks) for stage in every]
    assert sum(held) == n_blocks
    assert max(held) - min(held) <= 1
    assert held[-1] <= held[0] <= max(held[1:-1], default=held[0])


def test_gradients_of_a_part_go_when_its_micro_batches_are_through() -> None:
    """One round of an interleaved pipeline; several rounds keep them all."""
    sizes = TransformerSizes(32, 1024, 8, 4096, 1000)
    model = transformer("one", sizes, 128, Arithmetic())
    layout = Layout(shard=2, pp=4, v=8, schedule="interleaved", reshard=0)
    once, twice = (
        training_memory(model, Training(2 * n, 1, "bf16-master-fp32grad", "adamw"), layout)
        for n in (4, 8)
    )
    of_a_rank = 8 * (12 * 1024 * 1024 + 13 * 1024)  # the embedding's rank has 1,024,000 more
    more = twice.unsharded - once.unsharded
    assert more == pytest.approx(4 * (of_a_rank + 1_024_000) * 6 / 8, rel=0.01)


def test_llama_3_fits_where_it_did() -> None:
    """405 B on 16,384 H100 without recomputation (https://arxiv.org/abs/2407.21783, table 4)."""
    sizes = TransformerSizes(
        126, 16384, 128, 53248, 128256, 8, is_gated=True, is_tied=False, has_bias=False
    )
    layout = Layout(shard=128, tp=8, pp=16, v=8, sp=1, schedule="interleaved", reshard=0)
    training = Training(2048, 1, "bf16-master-fp32grad", "adamw")
    for gate, most in (("lean", 0.92 * 80), ("fused", 80)):
        model = transformer("Llama 3", sizes, 8192, Arithmetic(gate=gate))  # type: ignore[arg-type]
        assert training_memory(model, training, layout).total / GIB < most
