"""A plan from a number of parameters alone: the textbook's arithmetic, and no more than that.

Without sizes nothing is known of activations or of how fast products run: memory is that of the
states, and time needs the rate to be given.
"""

from __future__ import annotations

from hotlap.errors import UsageError
from hotlap.planner.layers import Kept, Layer, Matmul, Model


def model_of(n_params: int) -> Model:
    """A model of which only the size is known: 6 FLOPs a parameter and token."""
    if n_params < 1:
        raise UsageError(f"--params is {n_params}; it has to be at least 1")
    nothing = Kept()
    empty = Layer("", 0, 0, 0, (), (), 0.0, 0.0, 0, nothing, nothing, 0.0)
    block = Layer(
        "all", 0, n_params, 0, (Matmul(1, 1, n_params, "rows"),), (), 0.0, 0.0, 0,
        nothing, nothing, 0.0,
    )  # fmt: skip
    return Model(
        name=f"{n_params / 1e9:.4g} B parameters",
        unit="sequences",
        tokens_per_sample=1,
        stem=empty,
        blocks=(block,),
        head=empty,
        logits_bytes=0.0,
        logits_evaluated_bytes=0.0,
        tied_params=0,
        n_heads=1 << 20,  # any number of ranks may share it out
        n_kv_heads=None,
        n_experts=1,
    )
