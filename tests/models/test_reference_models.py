"""What is particular to each of the reference models."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hotlap.errors import UsageError
from hotlap.models.gpt import GPT
from hotlap.models.resnet import BasicBlock, Bottleneck, ResNet, resnet18, resnet50
from hotlap.models.vit import ViT


def small_gpt(**options: object) -> GPT:
    return GPT(
        **{"n_layers": 2, "n_heads": 2, "width": 16, "context": 12, "vocab_size": 40} | options
    )


@pytest.mark.parametrize(("small_stem", "size", "stem_size"), [(True, 28, 28), (False, 224, 56)])
def test_a_small_stem_keeps_the_resolution(small_stem: bool, size: int, stem_size: int) -> None:
    model = resnet18(n_classes=10, n_channels=1, small_stem=small_stem).eval()
    images = torch.randn(1, 1, size, size)
    assert model.embed(images).shape == (1, 64, stem_size, stem_size)
    assert model(images).shape == (1, 10)


def test_the_stride_of_a_bottleneck_is_on_its_3x3_convolution() -> None:
    block = resnet50().layer2[0]
    assert (block.conv1.stride, block.conv2.stride, block.conv3.stride) == ((1, 1), (2, 2), (1, 1))
    assert block.downsample[0].stride == (2, 2)


@pytest.mark.parametrize("block", [BasicBlock, Bottleneck])
def test_blocks_of_a_zero_initialised_resnet_pass_their_input_on(
    block: type[BasicBlock] | type[Bottleneck],
) -> None:
    model = ResNet(block, (2, 1, 1, 1), zero_init_residual=True)
    hidden = torch.rand(2, 64 * block.EXPANSION, 8, 8)
    assert torch.equal(model.layer1[1](hidden), hidden)
    without = ResNet(block, (2, 1, 1, 1))
    assert not torch.allclose(without.layer1[1](hidden), hidden, atol=0.1)


def test_convolutions_are_initialised_after_their_fan_out() -> None:
    weight = resnet18().layer2[0].conv1.weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (128 * 9)), rel=0.02)


def test_a_vit_refuses_images_that_its_patches_do_not_fill() -> None:
    with pytest.raises(UsageError, match="image_size is 40; a ViT takes multiples"):
        ViT(1, 2, 16, image_size=40)
    with pytest.raises(UsageError, match="48 x 40 pixels are for no ViT of patches of 16"):
        ViT(1, 2, 16, image_size=32)(torch.zeros(1, 3, 48, 40))


@pytest.mark.parametrize("size", [(64, 64), (96, 96), (48, 96), (16, 32)])
def test_a_vit_interpolates_its_positions_for_images_of_another_size(size: tuple[int, int]) -> None:
    vit = ViT(2, 2, 16, n_classes=5, image_size=64).double()
    rows, columns = (pixels // 16 for pixels in size)
    grid = vit.positions[:, 1:].unflatten(1, (4, 4)).permute(0, 3, 1, 2)
    resized = F.interpolate(grid, (rows, columns), mode="bicubic", antialias=True)
    expected = torch.cat((vit.positions[:, :1], resized.flatten(2).transpose(1, 2)), dim=1)
    images = torch.zeros(1, 3, *size, dtype=torch.float64)
    vit.patches.bias.data.zero_()
    found = vit.embed(images)  # of black images: the class token, and the positions alone
    found = torch.cat((found[:, :1] - vit.class_token, found[:, 1:]), dim=1)
    torch.testing.assert_close(found, expected)
    vit(images + 1).sum().backward()
    assert vit.positions.grad.abs().sum(dim=-1).gt(0).all()


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(UsageError, match="width is 16; it has to be a multiple of n_heads, 3"):
        small_gpt(n_heads=3)


def test_a_gpt_does_not_see_later_tokens() -> None:
    model = small_gpt().eval()
    tokens = torch.randint(40, (1, 12))
    changed = tokens.clone()
    changed[0, 7:] = (changed[0, 7:] + 1) % 40
    before, after = model(tokens), model(changed)
    torch.testing.assert_close(after[:, :7], before[:, :7])
    assert not torch.allclose(after[:, 7:], before[:, 7:])


def test_a_gpt_refuses_a_sequence_longer_than_its_context() -> None:
    with pytest.raises(UsageError, match="13 tokens came into a GPT whose context is 12"):
        small_gpt()(torch.zeros(1, 13, dtype=torch.long))


@pytest.mark.parametrize(("multiple", "n_rows"), [(1, 40), (64, 64), (8, 40), (128, 128)])
def test_a_padded_vocabulary_has_logits_for_its_padding(multiple: int, n_rows: int) -> None:
    for tied in (True, False):
        model = small_gpt(vocab_multiple=multiple, tied=tied)
        assert model(torch.zeros(1, 3, dtype=torch.long)).shape == (1, 3, n_rows)


def test_a_tied_gpt_learns_one_matrix_from_both_ends() -> None:
    model = small_gpt()
    assert "head.weight" not in model.state_dict()
    tokens = torch.zeros(1, 3, dtype=torch.long)
    nn.functional.cross_entropy(model(tokens)[0], tokens[0]).backward()
    # As an input only token 0 is used; as outputs all of them are.
    assert model.tokens.weight.grad is not None
    assert (model.tokens.weight.grad != 0).any(dim=1).all()


def test_gpt_weights_are_drawn_as_those_of_gpt2() -> None:
    model = GPT(n_layers=8, n_heads=2, width=128, vocab_size=500, tied=False)
    expected = {
        "tokens": 0.02,
        "positions": 0.02,
        "head": 0.02,
        "layers.3.attention.qkv": 0.02,
        "layers.3.mlp.up": 0.02,
        "layers.3.attention.output": 0.02 / 4,
        "layers.3.mlp.down": 0.02 / 4,
    }
    for name, std in expected.items():
        assert model.get_submodule(name).weight.std().item() == pytest.approx(std, rel=0.05), name
    assert not any(one.any() for name, one in model.named_parameters() if name.endswith("bias"))


def test_dropout_acts_in_training_alone_and_is_off_unless_asked_for() -> None:
    tokens = torch.randint(40, (2, 12))
    model = small_gpt(dropout=0.5)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))
    assert not any(part.p for part in small_gpt().modules() if isinstance(part, nn.Dropout))
