"""Which parameters are hidden matrices: the ones that Muon is for.

The layers of a model are its linear ones, convolutions, attentions and embeddings, in the order in
which the model registers them. The matrices of all layers are hidden, but for

- the first layer, which meets the input (a stem, the patches, an embedding of tokens),
- the last layer, which makes the output (the head),
- every embedding, for its rows are vectors that are looked up one by one.

Layers of the blocks that a model names (its method `blocks()`) are hidden wherever they stand: a
stage of a pipeline may have no stem or head, and the head of a model may be its embedding.

A matrix that is shared with a layer that is not hidden (a tied head) is not hidden either. Nor are
parameters of no layer (a class token, positions, scales): no input is multiplied by them.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)
LAYERS = (nn.Linear, _ConvNd, nn.MultiheadAttention, *EMBEDDINGS)


def hidden_matrices(model: nn.Module) -> list[Tensor]:
    """The trained matrices and kernels of the hidden layers, each once."""
    layers = [module for module in model.modules() if isinstance(module, LAYERS)]
    inside = {id(part) for block in _named_blocks(model) for part in block.modules()}
    ends = [one for one in layers[:1] + layers[-1:] if id(one) not in inside]
    outer = ends + [one for one in layers if isinstance(one, EMBEDDINGS)]
    not_hidden = {id(matrix) for layer in outer for matrix in _matrices(layer)}
    found = {id(matrix): matrix for layer in layers for matrix in _matrices(layer)}
    return [matrix for key, matrix in found.items() if key not in not_hidden]


def _named_blocks(model: nn.Module) -> list[nn.Module]:
    # The model itself may be inside a wrapper, as that of DDP.
    for module in model.modules():
        blocks = getattr(module, "blocks", None)
        if callable(blocks) and not isinstance(blocks, nn.Module):
            return list(blocks())
    return []


def _matrices(layer: nn.Module) -> Iterator[Tensor]:
    for parameter in layer.parameters(recurse=False):
        if parameter.ndim >= 2 and parameter.requires_grad:
            yield parameter
