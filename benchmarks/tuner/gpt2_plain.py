"""GPT-2 of 124 million parameters as a newcomer trains it: torch's defaults, fp32, no tuning.

The data are random tokens that are made once on the device and taken in turn. There is no dropout,
as is usual in pre-training.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

N_BATCHES = 4


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to what came before."""
        n, length, width = x.shape
        heads = (n, length, self.n_heads, width // self.n_heads)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(n, length, width))


class Block(nn.Module):
    """Attention and a multilayer perceptron, each with a residual."""

    def __init__(self, width: int, n_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, n_heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT2(nn.Module):
    """The decoder of GPT-2; the output layer shares its weight with the embedding."""

    def __init__(self, n_layers: int, width: int, n_heads: int, vocab: int, context: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, n_heads) for _ in range(n_layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.apply(self._init)
        self.head.weight = self.tokens.weight

    @staticmethod
    def _init(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """The logits of each next token."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.tokens(tokens) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build_model(tiny: bool = False) -> nn.Module:
    """GPT-2 124M, or two small layers."""
    if tiny:
        return GPT2(n_layers=2, width=64, n_heads=2, vocab=256, context=64)
    return GPT2(n_layers=12, width=768, n_heads=12, vocab=50257, context=1024)


def make_batches(batch: int, device: str, tiny: bool = False) -> list[tuple[Tensor, Tensor]]:
    """Random tokens, and the same one place on."""
    vocab, context = (256, 64) if tiny else (50257, 1024)
    made = [torch.randint(vocab, (batch, context + 1), device=device) for _ in range(N_BATCHES)]
    return [(one[:, :-1].contiguous(), one[:, 1:].contiguous()) for one in made]


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=8, help="sequences a step")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="two small layers")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    batches = make_batches(arguments.batch, arguments.device, arguments.tiny)
    model = build_model(arguments.tiny).to(arguments.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(arguments.steps):
        tokens, targets = batches[step % len(batches)]
        optimizer.zero_grad()
        logits = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        if step % 500 == 499:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
