"""Parameters and FLOPs of a model from its sizes are those of the real model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from hotlap.planner.config_json import sizes_from_config
from hotlap.planner.layers import Model
from hotlap.planner.transformer import Arithmetic, TransformerSizes, transformer

SEQ = 64


def from_config(config: transformers.PretrainedConfig, folder: Path) -> Model:
    path = folder / "config.json"
    path.write_text(json.dumps(config.to_dict(), default=str))
    name, sizes = sizes_from_config(path)
    return transformer(name, sizes, SEQ, Arithmetic())


def real_parameters(kind: Any, config: transformers.PretrainedConfig) -> int:
    with torch.device("meta"):
        model = kind._from_config(config) if hasattr(kind, "_from_config") else kind(config)
    return sum(parameter.numel() for parameter in model.parameters())


SMALL = {"vocab_size": 1000, "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6}


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (
            transformers.GPT2LMHeadModel,
            transformers.GPT2Config(
                n_layer=3, n_embd=96, n_head=6, vocab_size=1000, n_positions=128
            ),
        ),
        (
            transformers.LlamaForCausalLM,
            transformers.LlamaConfig(**SMALL, intermediate_size=200, num_key_value_heads=2),
        ),
        (
            transformers.LlamaForCausalLM,
            transformers.LlamaConfig(**SMALL, intermediate_size=200, tie_word_embeddings=True),
        ),
        (
            transformers.MixtralForCausalLM,
            transformers.MixtralConfig(
                **SMALL,
                intermediate_size=128,
                num_key_value_heads=2,
                num_local_experts=4,
                num_experts_per_tok=2,
            ),
        ),
    ],
    ids=["gpt2", "llama-gqa", "llama-tied", "mixtral"],
)
def test_a_config_gives_the_parameters_of_the_real_model(
    kind: Any, config: transformers.PretrainedConfig, tmp_path: Path
) -> None:
    assert from_config(config, tmp_path).n_params == real_parameters(kind, config)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (
            transformers.T5ForConditionalGeneration,
            transformers.T5Config(
                d_model=96, num_layers=3, num_decoder_layers=2, num_heads=6, d_kv=16, d_ff=256,
                vocab_size=1000, feed_forward_proj="gated-gelu", tie_word_embeddings=True,
            ),
        ),
        (
            transformers.BertForMaskedLM,
            transformers.BertConfig(**SMALL, intermediate_size=384, max_position_embeddings=128),
        ),
    ],
    ids=["t5", "bert"],
)  # fmt: skip
def test_relative_positions_and_extra_heads_change_little(
    kind: Any, config: transformers.PretrainedConfig, tmp_path: Path
) -> None:
    """T5's biases of positions and BERT's transform before its output are not counted."""
    real = real_parameters(kind, config)
    assert from_config(config, tmp_path).n_params == pytest.approx(real, rel=0.04)


LLAMA = {"is_gated": True, "is_tied": False, "has_bias": False}


@pytest.mark.parametrize(
    ("sizes", "published"),
    [
        (TransformerSizes(12, 768, 12, 3072, 50257, n_positions=1024), 124_439_808),
        (TransformerSizes(32, 4096, 32, 11008, 32000, **LLAMA), 6_738_415_616),
        (TransformerSizes(80, 8192, 64, 28672, 128256, n_kv_heads=8, **LLAMA), 70_553_706_496),
        (
            TransformerSizes(
                32, 4096, 32, 14336, 32000, n_kv_heads=8, n_experts=8, experts_per_token=2, **LLAMA
            ),
            46_702_792_704,
        ),
    ],
    ids=["GPT-2", "LLaMA 7B", "Llama 3 70B", "Mixtral 8x7B"],
)
def test_published_models_have_their_published_parameters(
    sizes: TransformerSizes, published: int
) -> None:
    assert transformer("one", sizes, 2048, Arithmetic()).n_params == published


def test_of_the_experts_a_token_meets_a_few() -> None:
    sizes = TransformerSizes(
        32, 4096, 32, 14336, 32000, n_kv_heads=8, n_experts=8, experts_per_token=2, **LLAMA
    )
    model = transformer("Mixtral", sizes, 2048, Arithmetic())
    assert model.n_active_params == 12_879_925_248


def test_flops_follow_the_published_formula() -> None:
    s, h, n_layers, vocab = 2048, 12288, 96, 51200
    model = transformer("GPT-3", TransformerSizes(n_layers, h, 96, 4 * h, vocab), s, Arithmetic())
    formula = 72 * s * n_layers * h**2 * (1 + s / (6 * h) + vocab / (12 * n_layers * h))
    assert 3 * model.flops == pytest.approx(formula, rel=1e-9)


@pytest.mark.parametrize("fused", [False, True])
def test_activations_follow_the_published_formula(fused: bool) -> None:
    s, h, heads = 2048, 6144, 64
    sizes = TransformerSizes(48, h, heads, 4 * h, 51200, has_dropout=True)
    block = transformer("22B", sizes, s, Arithmetic(fused_attention=fused)).blocks[0]
    scores = 0 if fused else 5 * heads * s / h
    statistics = 4 * heads / h if fused else 0
    assert block.kept.whole == 10 * s * h
    assert block.kept.cut == pytest.approx(s * h * (24 + scores + statistics))
    assert block.kept_selective.cut == pytest.approx(s * h * (24 + statistics))
    assert block.input_bytes == 2 * s * h
