"""A transformer's `config.json`, as Hugging Face's models have it, to its sizes.

Each size has several names in use; the first that is there counts. What is not there and decides
the answer is an error, not a guess.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hotlap.errors import RecordError, UsageError
from hotlap.planner.transformer import TransformerSizes
from hotlap.records.codec import read_json

NAMES: dict[str, tuple[str, ...]] = {
    "n_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "n_heads": (
        "num_attention_heads",
        "n_head",
        "n_heads",
        "num_heads",
        "encoder_attention_heads",
    ),
    "ffn": (
        "intermediate_size",
        "ffn_hidden_size",
        "n_inner",
        "ffn_dim",
        "d_ff",
        "encoder_ffn_dim",
    ),
    "vocab": ("vocab_size", "padded_vocab_size"),
    "n_kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "head_width": ("head_dim", "d_kv"),
    "n_experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "experts_per_token": ("num_experts_per_tok", "num_experts_per_token"),
    "expert_ffn": ("moe_intermediate_size",),
    "n_shared_experts": ("n_shared_experts",),
    "n_dense_layers": ("first_k_dense_replace",),
    "n_decoder_layers": ("num_decoder_layers", "decoder_layers"),
}
REQUIRED = ("n_layers", "hidden", "n_heads", "vocab")
FOUR_TIMES = ("gpt2", "gptj", "gpt_neo", "codegen", "gpt_bigcode", "bloom", "falcon", "mpt")
"""Models whose feed-forward part is four times as wide as the rest unless they say otherwise."""
LEARNED_POSITIONS = ("gpt2", "gpt_neo", "gpt_bigcode", "opt", "bert", "roberta", "bart")
WITH_BIAS = (*LEARNED_POSITIONS, "gpt_neox", "bloom", "gptj", "codegen", "phi", "distilbert")
NOT_CAUSAL = ("bert", "roberta", "distilbert", "electra", "deberta", "deberta-v2")
GATED_ACTIVATIONS = ("silu", "swiglu", "gelu_pytorch_tanh")
TIED_UNLESS_SAID = (
    "gpt2",
    "opt",
    "bloom",
    "t5",
    "bart",
    "bert",
    "roberta",
    "mpt",
    "gemma",
    "gemma2",
)


def sizes_from_config(path: Path) -> tuple[str, TransformerSizes]:
    """The model's name and sizes."""
    document = read_json(path)
    if not isinstance(document, dict):
        raise UsageError(f"{path} holds no object; a transformer's config.json has keys and values")
    config: Mapping[str, Any] = document.get("text_config") or document
    kind = str(config.get("model_type", document.get("model_type", "")))
    if config.get("kv_lora_rank"):
        raise UsageError(
            f"{path}: key 'kv_lora_rank' was found; latent attention has other sizes than the "
            "planner counts from a config: give the model as package.module:factory"
        )
    found = {name: _find(path, config, name) for name in NAMES}
    for name in REQUIRED:
        if found[name] is None:
            raise UsageError(f"{path} has no key '{NAMES[name][0]}' (nor {_others(name)})")
    if found["ffn"] is None:
        found["ffn"] = _implied_ffn(path, config, kind, found["hidden"] or 0)
    if found["n_experts"] and found["experts_per_token"] is None:
        raise UsageError(f"{path} has experts and no key 'num_experts_per_tok'")
    given: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
    try:
        sizes = TransformerSizes(
            **given,
            is_gated=_is_gated(config, kind),
            is_tied=bool(config.get("tie_word_embeddings", kind in TIED_UNLESS_SAID)),
            has_bias=kind in WITH_BIAS,
            n_positions=_positions(config, kind),
            is_causal=kind not in NOT_CAUSAL,
        )
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    return kind or path.parent.name or "transformer", sizes


def _find(path: Path, config: Mapping[str, Any], name: str) -> int | None:
    for key in NAMES[name]:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise RecordError(f"{path}: key '{key}' is {value!r}; a whole number is expected")
        if value == 0 and name in REQUIRED:
            raise RecordError(f"{path}: key '{key}' is 0; it has to be at least 1")
        return value
    return None


def _others(name: str) -> str:
    return " or ".join(f"'{key}'" for key in NAMES[name][1:])


def _implied_ffn(path: Path, config: Mapping[str, Any], kind: str, hidden: int) -> int:
    ratio = config.get("expansion_ratio", 4 if kind in FOUR_TIMES else None)
    if not isinstance(ratio, int) or ratio < 1:
        raise UsageError(f"{path} has no key '{NAMES['ffn'][0]}' (nor {_others('ffn')})")
    return ratio * hidden


def _is_gated(config: Mapping[str, Any], kind: str) -> bool:
    if "feed_forward_proj" in config:
        return str(config["feed_forward_proj"]).startswith("gated")
    activation = config.get("hidden_act") or config.get("hidden_activation")
    return kind not in WITH_BIAS and activation in GATED_ACTIVATIONS


def _positions(config: Mapping[str, Any], kind: str) -> int:
    if kind not in LEARNED_POSITIONS:
        return 0
    value = config.get("n_positions", config.get("max_position_embeddings", 0))
    return value if isinstance(value, int) else 0
