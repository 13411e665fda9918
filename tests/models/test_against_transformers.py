"""The reference models compute what those of transformers do, given the same weights.

In double precision, so that equal means equal mathematics. Transformers' ResNet has torchvision's
architecture as long as `downsample_in_bottleneck` is false, which is its default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
import torch
from small_models import redraw
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

from hotlap.models.gpt import GPT
from hotlap.models.resnet import resnet18, resnet50
from hotlap.models.vit import ViT

Weights = dict[str, Tensor]


def renamed(weights: Mapping[str, Tensor], rules: Mapping[str, str]) -> Weights:
    """The weights by their names after all rules; a rule is a pattern and what it becomes."""
    result = {}
    for name, tensor in weights.items():
        for pattern, new in rules.items():
            name = re.sub(pattern, new, name)
        result[name] = tensor
    return result


def head_by_head(query: Tensor, key: Tensor, value: Tensor, n_heads: int) -> Tensor:
    """The rows of three projections in the order of `Attention.qkv`."""
    parts = [part.unflatten(0, (n_heads, -1)) for part in (query, key, value)]
    return torch.stack(parts, dim=1).flatten(0, 2)


GPT2_NAMES = {
    r"^transformer\.": "",
    r"^wte\.": "tokens.",
    r"^wpe\.": "positions.",
    r"^ln_f\.": "norm.",
    r"^lm_head\.": "head.",
    r"^h\.": "layers.",
    r"\.ln_1\.": ".attention_norm.",
    r"\.ln_2\.": ".mlp_norm.",
    r"\.attn\.c_attn\.": ".attention.qkv.",
    r"\.attn\.c_proj\.": ".attention.output.",
    r"\.mlp\.c_fc\.": ".mlp.up.",
    r"\.mlp\.c_proj\.": ".mlp.down.",
}


def gpt2_weights(model: GPT2LMHeadModel, n_heads: int, tied: bool) -> Weights:
    weights = renamed(model.state_dict(), GPT2_NAMES)
    if tied:
        del weights["head.weight"]
    for name, tensor in weights.items():
        # Its linear layers hold their weights transposed.
        if re.search(r"\.(qkv|output|up|down)\.weight$", name):
            weights[name] = tensor.T
        if ".qkv." in name:
            weights[name] = head_by_head(*weights[name].chunk(3), n_heads)
    return weights


@pytest.mark.parametrize("tied", [True, False])
def test_gpt_gives_the_logits_of_transformers_gpt2(tied: bool) -> None:
    config = GPT2Config(
        vocab_size=101, n_positions=24, n_embd=32, n_layer=3, n_head=4, tie_word_embeddings=tied
    )
    theirs = GPT2LMHeadModel(config).double().eval()
    redraw(theirs)
    ours = GPT(3, 4, 32, vocab_size=101, context=24, tied=tied).double().eval()
    ours.load_state_dict(gpt2_weights(theirs, 4, tied))
    tokens = torch.randint(101, (2, 24))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-9, atol=1e-9)


VIT_NAMES = {
    r"^vit\.": "",
    r"^embeddings\.cls_token": "class_token",
    r"^embeddings\.position_embeddings": "positions",
    r"^embeddings\.patch_embeddings\.projection\.": "patches.",
    r"^layernorm\.": "norm.",
    r"^classifier\.": "head.",
    r"\.layernorm_before\.": ".attention_norm.",
    r"\.layernorm_after\.": ".mlp_norm.",
    r"\.attention\.o_proj\.": ".attention.output.",
    r"\.mlp\.fc1\.": ".mlp.up.",
    r"\.mlp\.fc2\.": ".mlp.down.",
}


def vit_weights(model: ViTForImageClassification, n_heads: int) -> Weights:
    weights = renamed(model.state_dict(), VIT_NAMES)
    for name in [name for name in weights if ".q_proj." in name]:
        parts = [weights.pop(name.replace("q_proj", f"{which}_proj")) for which in "qkv"]
        weights[name.replace("q_proj", "qkv")] = head_by_head(*parts, n_heads)
    return weights


def test_vit_gives_the_logits_of_transformers_vit() -> None:
    config = ViTConfig(
        hidden_size=48, num_hidden_layers=3, num_attention_heads=4, intermediate_size=192,
        image_size=64, patch_size=16, num_labels=11, layer_norm_eps=1e-6,
    )  # fmt: skip
    theirs = ViTForImageClassification(config).double().eval()
    redraw(theirs)
    ours = ViT(3, 4, 48, n_classes=11, image_size=64).double().eval()
    ours.load_state_dict(vit_weights(theirs, 4))
    images = torch.randn(2, 3, 64, 64, dtype=torch.double)
    torch.testing.assert_close(ours(images), theirs(images).logits, rtol=1e-9, atol=1e-9)


def resnet_weights(model: ResNetForImageClassification) -> Weights:
    weights = renamed(model.state_dict(), {
        r"^resnet\.embedder\.embedder\.convolution\.": "conv1.",
        r"^resnet\.embedder\.embedder\.normalization\.": "bn1.",
        r"^classifier\.1\.": "fc.",
        r"^resnet\.encoder\.stages\.(\d+)\.layers\.": lambda m: f"layer{int(m[1]) + 1}.",
        r"\.layer\.(\d+)\.convolution\.": lambda m: f".conv{int(m[1]) + 1}.",
        r"\.layer\.(\d+)\.normalization\.": lambda m: f".bn{int(m[1]) + 1}.",
        r"\.shortcut\.convolution\.": ".downsample.0.",
        r"\.shortcut\.normalization\.": ".downsample.1.",
    })  # fmt: skip
    return weights


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_resnet_gives_the_logits_of_transformers_resnet(name: str) -> None:
    if name == "resnet18":
        config = ResNetConfig(
            layer_type="basic", depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], num_labels=13
        )
        ours = resnet18(n_classes=13)
    else:
        config = ResNetConfig(num_labels=13)
        ours = resnet50(n_classes=13)
    theirs = ResNetForImageClassification(config).double()
    redraw(theirs)
    ours.double().load_state_dict(resnet_weights(theirs))
    images = torch.randn(2, 3, 96, 96, dtype=torch.double)
    # In training first: the statistics that both gather are far from those they begin with.
    for is_training in (True, False):
        outputs, expected = ours.train(is_training)(images), theirs.train(is_training)(images)
        torch.testing.assert_close(outputs, expected.logits, rtol=1e-9, atol=1e-9)
