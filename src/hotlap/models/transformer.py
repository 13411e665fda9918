"""The pre-norm transformer block that ViT and GPT share.

Query, key and value come from one linear layer whose rows go head by head: those of query, key and
value for the first head, then those for the second, and so on. So an even cut of the rows gives
each rank of tensor parallelism whole heads. In the usual order, all queries before all keys before
all values, it would give one rank the queries and another one the values.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from hotlap.errors import UsageError

TENSOR_PARALLEL = {
    "attention.qkv": "columns",
    "attention.output": "rows",
    "mlp.up": "columns",
    "mlp.down": "rows",
}
"""Heads and hidden units are cut over the ranks; only sums of outputs cross between them."""


class Attention(nn.Module):
    """Self-attention with several heads."""

    def __init__(self, width: int, n_heads: int, is_causal: bool, dropout: float) -> None:
        super().__init__()
        if width % n_heads:
            raise UsageError(f"width is {width}; it has to be a multiple of n_heads, {n_heads}")
        self.head_width = width // n_heads
        self.is_causal = is_causal
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] to the same."""
        # The number of heads is left open: under tensor parallelism a rank has some of them.
        qkv = self.qkv(x).unflatten(-1, (-1, 3, self.head_width))
        query, key, value = qkv.transpose(1, 2).unbind(-2)
        dropout = self.dropout if self.training else 0.0
        x = F.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=self.is_causal
        )
        return self.output(x.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """Two linear layers, four times as wide between them."""

    def __init__(self, width: int, gelu: Literal["none", "tanh"]) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU(approximate=gelu)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] to the same."""
        return self.down(self.gelu(self.up(x)))


class Block(nn.Module):
    """Attention, then the MLP; each takes a normed input and adds to the residual stream."""

    def __init__(
        self,
        width: int,
        n_heads: int,
        *,
        is_causal: bool,
        gelu: Literal["none", "tanh"],
        norm_eps: float,
        dropout: float = 0.0,
    ) -> None:
        """`gelu` is torch's `approximate`: the exact function or the one with tanh."""
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, eps=norm_eps)
        self.attention = Attention(width, n_heads, is_causal, dropout)
        self.mlp_norm = nn.LayerNorm(width, eps=norm_eps)
        self.mlp = Mlp(width, gelu)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, width] to the same."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))
