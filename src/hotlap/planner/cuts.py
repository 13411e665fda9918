"""How tensor parallelism would cut a traced model: which linear layers, and along which side.

A model of hotlap's own says it. Of others it is known by the names that their linear layers have in
common: queries, keys, values and what widens are cut by columns, what brings the parts together by
rows. A block in which columns or rows are missing is not cut at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotlap.planner.layers import Cut

if TYPE_CHECKING:
    from torch import nn

COLUMNS = (
    *("q_proj", "k_proj", "v_proj", "qkv", "qkv_proj", "query", "key", "value", "query_key_value"),
    *("c_attn", "Wqkv", "q", "k", "v", "gate_proj", "up_proj", "up", "gate", "fc1", "c_fc"),
    *("fc_in", "lin1", "wi", "wi_0", "wi_1", "w1", "w3", "dense_h_to_4h"),
)
ROWS = (
    *("o_proj", "out_proj", "output", "wo", "o", "c_proj", "proj", "down_proj", "down", "fc2"),
    *("fc_out", "lin2", "w2", "dense_4h_to_h"),
)


def cuts_of(model: nn.Module, blocks: list[nn.Module]) -> dict[nn.Module, Cut]:
    """Linear layers of the blocks and their cut; empty where not every block can be cut."""
    found: dict[nn.Module, Cut] = {}
    said: dict[str, Cut] | None = getattr(model, "TENSOR_PARALLEL", None)
    for block in blocks:
        cuts = _said(block, said) if said else _by_name(block)
        if set(cuts.values()) != {"columns", "rows"}:
            return {}
        found |= cuts
    return found


def _said(block: nn.Module, said: dict[str, Cut]) -> dict[nn.Module, Cut]:
    return {block.get_submodule(name): cut for name, cut in said.items()}


def _by_name(block: nn.Module) -> dict[nn.Module, Cut]:
    found: dict[nn.Module, Cut] = {}
    for name, module in block.named_modules():
        weight = getattr(module, "weight", None)
        if weight is None or weight.dim() != 2:
            continue
        last = name.rpartition(".")[2]
        if last in COLUMNS:
            found[module] = "columns"
        elif last in ROWS:
            found[module] = "rows"
    return found
