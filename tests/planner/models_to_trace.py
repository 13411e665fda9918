"""Models for the tests of tracing: of several kinds, and some that cannot be traced."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def conv_net(width: int = 16) -> nn.Module:
    """A stem, two kinds of blocks, one grouped, and a head."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.Sequential(_Residual(width, 1), _Residual(width, 4)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 10),
    )


def two_layers() -> nn.Module:
    """So small that its kernels can be counted by hand."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(3072, 8, bias=False), nn.ReLU(), nn.Linear(8, 4, bias=False)
    )


def without_products() -> nn.Module:
    """Norms and averages alone."""
    return nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class _Residual(nn.Module):
    def __init__(self, width: int, groups: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.relu(self.norm(self.conv(x)))


class Recurrent(nn.Module):
    """A language model of two layers of an LSTM."""

    def __init__(self, width: int = 32, vocab_size: int = 100) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(self.tokens(tokens))[0])
        return logits


class EncoderDecoder(nn.Module):
    """Reads one sequence and writes another, of torch's own layers."""

    def __init__(self, width: int = 32, n_layers: int = 2, vocab_size: int = 100) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        make = {"d_model": width, "nhead": 4, "dim_feedforward": 64, "batch_first": True}
        self.encoder = nn.ModuleList(nn.TransformerEncoderLayer(**make) for _ in range(n_layers))
        self.decoder = nn.ModuleList(nn.TransformerDecoderLayer(**make) for _ in range(n_layers))
        self.head = nn.Linear(width, vocab_size)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, x = self.tokens(source), self.tokens(target)
        for layer in self.encoder:
            memory = layer(memory)
        for layer in self.decoder:
            x = layer(x, memory)
        return self.head(x)


class _GatedBlock(nn.Module):
    """Attention and a gated layer under the names that most language models use."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            setattr(self, name, nn.Linear(width, width, bias=False))
        self.gate_proj = nn.Linear(width, 2 * width, bias=False)
        self.up_proj = nn.Linear(width, 2 * width, bias=False)
        self.down_proj = nn.Linear(2 * width, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        heads = [
            layer(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        ]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = self.norm(x + self.o_proj(mixed.transpose(1, 2).flatten(2)))
        return x + self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def llama_like() -> nn.Module:
    """Cut by the names of its layers."""
    blocks = nn.Sequential(*(_GatedBlock(32, 4) for _ in range(2)))
    return nn.Sequential(nn.Embedding(100, 32), blocks, nn.Linear(32, 100))


class _Experts(nn.Module):
    """Each token goes to its two best experts, weighted; all experts see all tokens."""

    def __init__(self, width: int, n_experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, n_experts, bias=False)
        self.up = nn.Parameter(torch.randn(n_experts, width, 2 * width))
        self.down = nn.Parameter(torch.randn(n_experts, 2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        best, which = self.router(x).softmax(-1).topk(2, dim=-1)
        weights = torch.zeros_like(self.router(x)).scatter(-1, which, best)
        flat = x.flatten(0, 1).expand(len(self.up), -1, -1)
        made = torch.bmm(torch.bmm(flat, self.up).relu(), self.down)
        return x + torch.einsum("etw,te->tw", made, weights.flatten(0, 1)).view_as(x)


def mixture(width: int = 16, n_experts: int = 4) -> nn.Module:
    """A mixture of experts whose sizes do not depend on where tokens go."""
    blocks = nn.Sequential(*(_Experts(width, n_experts) for _ in range(2)))
    return nn.Sequential(nn.Embedding(100, width), blocks, nn.Linear(width, 100))


class _Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        if self.layer.weight.sum().item() > 0:
            return x
        return -x


def looks_at_values() -> nn.Module:
    """Cannot be traced: what it does depends on values."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), _Branches())


def frozen() -> nn.Module:
    """Nothing to train."""
    return nn.Linear(4, 4).requires_grad_(False)


def dies() -> nn.Module:
    """Takes its process with it."""
    import os

    os._exit(7)


def raises() -> nn.Module:
    """Cannot be made."""
    raise RuntimeError("no such\nthing")
