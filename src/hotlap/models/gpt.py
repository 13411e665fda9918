"""Decoders of GPT-2's shape, at its sizes or any other: learned positions, pre-norm, GELU tanh.

The published parameter counts are those of the tied model: its output layer is the transposed
token embedding. There is no second name for that tensor, neither in the module nor in the state
dict. The two ends of a pipeline lie on different devices, so a pipeline needs `tied=False`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hotlap.errors import UsageError
from hotlap.models import transformer
from hotlap.models.staged import StagedModel

WEIGHT_STD = 0.02
NORM_EPS = 1e-5
ENDS_OF_RESIDUAL_BRANCHES = ("attention.output", "mlp.down")


class GPT(StagedModel):
    """Tokens [batch, length] to logits [batch, length, vocabulary].

    A vocabulary that is padded to a multiple has logits for the padding too, from `vocab_size` on.
    They are no token's: the loss learns to keep them low; cut them off before sampling.
    """

    TENSOR_PARALLEL = transformer.TENSOR_PARALLEL
    STEM = ("tokens", "positions", "dropout")
    BLOCKS = ("layers",)
    HEAD = ("norm", "head")

    def __init__(
        self,
        n_layers: int,
        n_heads: int,
        width: int,
        vocab_size: int = 50257,
        vocab_multiple: int = 1,
        context: int = 1024,
        tied: bool = True,
        dropout: float = 0.0,
    ) -> None:
        """`vocab_multiple` pads the vocabulary: 64 or 128 suits tensor cores."""
        super().__init__()
        self.n_layers = n_layers
        self.n_heads = n_heads
        self.context = context
        n_rows = math.ceil(vocab_size / vocab_multiple) * vocab_multiple
        self.tokens = nn.Embedding(n_rows, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.Sequential(
            *(
                transformer.Block(
                    width,
                    n_heads,
                    is_causal=True,
                    gelu="tanh",
                    norm_eps=NORM_EPS,
                    dropout=dropout,
                )
                for _ in range(n_layers)
            )
        )
        self.norm = nn.LayerNorm(width, eps=NORM_EPS)
        self.head = None if tied else nn.Linear(width, n_rows, bias=False)
        self.initialise()

    @property
    def is_tied(self) -> bool:
        """Whether the output layer is the token embedding."""
        return self.is_last and self.head is None

    @torch.no_grad()
    def initialise(self) -> None:
        """GPT-2's: the more layers add to the residual stream, the less each adds."""
        for name, module in self.named_modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=self._weight_std(name))
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def _weight_std(self, name: str) -> float:
        if name.endswith(ENDS_OF_RESIDUAL_BRANCHES):
            return WEIGHT_STD / math.sqrt(2 * self.n_layers)
        return WEIGHT_STD

    def embed(self, inputs: Tensor) -> Tensor:
        """Each token with its position."""
        length = inputs.shape[1]
        if length > self.context:
            raise UsageError(
                f"a sequence of {length} tokens came into a GPT whose context is {self.context}"
            )
        positions = self.positions(torch.arange(length, device=inputs.device))
        return self.dropout(self.tokens(inputs) + positions)

    def predict(self, hidden: Tensor) -> Tensor:
        """Logits of the next token, at every position."""
        hidden = self.norm(hidden)
        return F.linear(hidden, self.tokens.weight) if self.head is None else self.head(hidden)

    def stage(self, first_block: int, end_block: int, is_first: bool, is_last: bool) -> StagedModel:
        """A stage of a pipeline; of a tied model only the whole.

        Copies of the tied weight on both ends would get different gradients and drift apart.
        """
        if self.is_tied and not (is_first and is_last):
            raise UsageError("tied is true; a GPT that is cut into stages needs tied = false")
        return super().stage(first_block, end_block, is_first, is_last)


def gpt2_124m(**options: Any) -> GPT:
    """The smallest GPT-2."""
    return GPT(n_layers=12, n_heads=12, width=768, **options)


def gpt2_355m(**options: Any) -> GPT:
    """GPT-2 medium."""
    return GPT(n_layers=24, n_heads=16, width=1024, **options)


def gpt2_774m(**options: Any) -> GPT:
    """GPT-2 large."""
    return GPT(n_layers=36, n_heads=20, width=1280, **options)


def gpt2_1558m(**options: Any) -> GPT:
    """GPT-2 XL."""
    return GPT(n_layers=48, n_heads=25, width=1600, **options)
