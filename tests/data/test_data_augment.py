"""Augmentation on the device: each operation means what its name says, and targets follow."""

from __future__ import annotations

import random

import pytest
import torch
from torch.nn.functional import cross_entropy

from hotlap.data import randaugment as ops
from hotlap.data.augment import (
    Augment,
    cutmix,
    erased,
    mixup,
    normalised,
    scale_and_shift,
    statistics_of,
)
from hotlap.data.settings import DataSettings
from hotlap.errors import UsageError

CPU = torch.device("cpu")
N_CLASSES = 5


def noise(n: int = 6, n_channels: int = 3, height: int = 16, width: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (n, n_channels, height, width)
    return torch.randint(256, shape, dtype=torch.uint8, generator=generator)


LABELS = torch.arange(6) % N_CLASSES
PLUS, MINUS = torch.ones(6), -torch.ones(6)


def augment_of(is_training: bool = True, rank: int = 0, **how: object) -> Augment:
    settings = DataSettings(**how)  # type: ignore[arg-type]
    return Augment(settings, N_CLASSES, rank, seed=1, device=CPU, is_training=is_training)


def test_pixels_are_normalised_by_channel() -> None:
    images = torch.zeros(1, 3, 2, 2, dtype=torch.uint8)
    images[:, 1] = 255
    out, targets = augment_of()(images, torch.tensor([2]), step=0)
    assert out.dtype == torch.float32
    assert out[0, 0, 0, 0].item() == pytest.approx(-0.485 / 0.229)
    assert out[0, 1, 0, 0].item() == pytest.approx((1 - 0.456) / 0.224)
    assert targets.tolist() == [2]


def test_normalised_noise_has_mean_0_and_deviation_1() -> None:
    images = noise(height=64, width=64).float()
    mean, std = (images / 255).mean((0, 2, 3)), (images / 255).std((0, 2, 3))
    out = normalised(images, *scale_and_shift(mean.view(3, 1, 1), std.view(3, 1, 1)))
    assert out.mean((0, 2, 3)).tolist() == pytest.approx([0] * 3, abs=1e-4)
    assert out.std((0, 2, 3)).tolist() == pytest.approx([1] * 3, abs=1e-4)


def test_grey_images_have_statistics_too_and_a_wrong_number_is_named() -> None:
    mean, std = statistics_of(DataSettings(), n_channels=1)
    assert (mean.item(), std.item()) == (0.5, 0.5)
    with pytest.raises(UsageError, match=r"data\.mean has 1 values; the images have 3 channels"):
        statistics_of(DataSettings(mean=(0.5,), std=(0.5,)), n_channels=3)


FULL = {
    "randaugment_ops": 2,
    "random_erasing": 0.5,
    "mixup": 0.2,
    "cutmix": 1.0,
}


def test_images_come_out_with_the_channels_innermost() -> None:
    for how in ({}, FULL):
        out, _ = augment_of(**how)(noise(16), LABELS.repeat(3)[:16], step=3)
        assert out.is_contiguous(memory_format=torch.channels_last)


def test_draws_are_a_function_of_the_step_and_the_rank_alone() -> None:
    def at(augment: Augment, step: int) -> torch.Tensor:
        return augment(noise(), LABELS, step)[0]

    used = augment_of(**FULL)
    for step in range(4):
        at(used, step)
    assert torch.equal(at(used, 2), at(augment_of(**FULL), 2))
    assert not torch.equal(at(used, 2), at(used, 3))
    assert not torch.equal(at(used, 2), at(augment_of(rank=1, **FULL), 2))


def test_augmentation_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    augment_of(**FULL)(noise(), LABELS, step=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_validation_images_and_tokens_are_not_augmented() -> None:
    plain, targets = augment_of(is_training=False, **FULL)(noise(), LABELS, step=0)
    statistics = scale_and_shift(*statistics_of(DataSettings(), 3))
    assert torch.equal(plain, normalised(noise().float(), *statistics))
    assert torch.equal(targets, LABELS)
    tokens = torch.arange(12).view(2, 6)
    inputs, _ = augment_of(**FULL)(tokens, tokens, step=0)
    assert inputs is tokens


def one_hot_labels() -> torch.Tensor:
    return torch.eye(N_CLASSES)[LABELS]


def test_mixup_mixes_images_and_targets_by_the_same_share() -> None:
    images = noise().float()
    mixed, targets = mixup(images, one_hot_labels(), 0.7, random.Random(0))
    assert torch.allclose(mixed[1], 0.7 * images[1] + 0.3 * images[0], atol=1e-3)
    assert targets[1].tolist() == pytest.approx([0.3, 0.7, 0, 0, 0])
    assert targets.sum(1).tolist() == pytest.approx([1.0] * 6)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_cutmix_targets_are_the_area_that_was_cut(share: float) -> None:
    images = torch.zeros(6, 1, 20, 30)
    images[0] = 1.0  # image 1 gets its box from image 0
    for seed in range(20):
        mixed, targets = cutmix(images, one_hot_labels(), share, random.Random(seed))
        cut = mixed[1].mean().item()
        assert targets[1].tolist() == pytest.approx([cut, 1 - cut, 0, 0, 0], abs=1e-6)
        assert cut <= 1 - share + 0.1
        assert mixed[0].mean().item() == pytest.approx(1 - cut, abs=1e-6)


def test_a_batch_is_mixed_by_either_and_probabilities_sum_to_1() -> None:
    augment = augment_of(mixup=0.4, cutmix=1.0)
    is_cut = []
    for step in range(30):
        images = torch.zeros(6, 3, 16, 16, dtype=torch.uint8)
        images[0] = 255
        out, targets = augment(images, LABELS, step)
        assert targets.sum(1).tolist() == pytest.approx([1.0] * 6, abs=1e-5)
        is_cut.append(len(out[1, 0].unique()) > 1)
    assert 5 < sum(is_cut) < 28


def test_smoothing_of_mixed_targets_is_the_mix_of_smoothed_losses() -> None:
    logits = torch.randn(6, N_CLASSES, generator=torch.Generator().manual_seed(0))
    _, targets = mixup(noise().float(), one_hot_labels(), 0.7, random.Random(0))
    loss = cross_entropy(logits, targets, label_smoothing=0.1)
    own = cross_entropy(logits, LABELS, label_smoothing=0.1)
    others = cross_entropy(logits, LABELS.roll(1), label_smoothing=0.1)
    assert loss.item() == pytest.approx((0.7 * own + 0.3 * others).item(), rel=1e-5)


def test_erasing_blanks_one_rectangle_of_as_many_images_as_asked() -> None:
    images = torch.ones(2000, 2, 24, 32)
    out = erased(images, 0.25, torch.Generator().manual_seed(0))
    is_erased = (out == 0).any(1)
    hit = is_erased.flatten(1).any(1)
    assert hit.float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert torch.equal((out == 0).all(1), is_erased)
    # A rectangle is all of the rows and columns that it touches.
    box = is_erased.any(2, keepdim=True) & is_erased.any(1, keepdim=True)
    assert torch.equal(box, is_erased)
    area = is_erased[hit].float().mean((1, 2))
    assert 0.01 < area.min() < 0.05
    assert 0.25 < area.max() < 0.36


@pytest.mark.parametrize("operation", ops.OPERATIONS, ids=lambda one: one.__name__)
@pytest.mark.parametrize("n_channels", [1, 3])
def test_every_operation_keeps_shape_and_range(operation: ops.Operation, n_channels: int) -> None:
    images = noise(n_channels=n_channels, height=12, width=20).float()
    for signs in (PLUS, MINUS):
        out = operation(images, 1.0, signs)
        assert out.shape == images.shape
        assert out.min() >= 0
        assert out.max() <= 255.01


@pytest.mark.parametrize(
    "operation",
    [one for one in ops.OPERATIONS if one is not ops.autocontrast],
    ids=lambda one: one.__name__,
)
def test_no_strength_is_no_change(operation: ops.Operation) -> None:
    images = noise(height=12, width=20).float()
    assert torch.allclose(operation(images, 0.0, PLUS), images, atol=0.02)


@pytest.mark.parametrize(
    "operation",
    [one for one in ops.OPERATIONS if one is not ops.identity],
    ids=lambda one: one.__name__,
)
def test_strength_changes_the_image(operation: ops.Operation) -> None:
    images = noise().float() * 0.9
    assert (operation(images, 0.5, PLUS) - images).abs().mean() > 0.5


def test_brightness_and_its_sign() -> None:
    images = torch.full((6, 3, 4, 4), 100.0)
    assert ops.brightness(images, 1.0, PLUS).unique().tolist() == pytest.approx([190.0])
    assert ops.brightness(images, 1.0, MINUS).unique().tolist() == pytest.approx([10.0], rel=1e-4)


def test_contrast_spreads_about_the_mean() -> None:
    images = 100 + noise().float() / 10
    spread = [ops.contrast(images, 0.5, signs).std() for signs in (MINUS, PLUS)]
    assert spread[0] < images.std() < spread[1]
    means = ops.contrast(images, 0.5, PLUS).mean((1, 2, 3))
    assert torch.allclose(means, images.mean((1, 2, 3)), atol=1.0)


def test_colour_goes_towards_grey_of_the_same_luminance() -> None:
    images = noise().float()
    duller = ops.colour(images, 1.0, MINUS)
    assert torch.allclose(ops.grey(duller), ops.grey(images), atol=0.1)
    assert duller.std(1).mean() < 0.2 * images.std(1).mean()


def test_sharpness_smooths_or_sharpens_all_but_the_edge() -> None:
    images = 100 + noise().float() / 10
    smooth, sharp = (ops.sharpness(images, 0.9, signs) for signs in (MINUS, PLUS))
    assert smooth.std() < images.std() < sharp.std()
    assert torch.allclose(smooth[..., 0, :], images[..., 0, :], atol=1e-3)


def test_posterize_leaves_the_top_bits() -> None:
    images = noise()
    for strength, mask in ((0.25, 0b11111110), (0.5, 0b11111100), (1.0, 0b11110000)):
        out = ops.posterize(images.float(), strength, PLUS)
        assert torch.equal(out.to(torch.uint8), images & mask)


def test_solarize_inverts_what_is_above_the_threshold() -> None:
    images = torch.tensor([10.0, 127.0, 128.0, 250.0]).view(1, 1, 2, 2)
    assert ops.solarize(images, 0.5, PLUS).flatten().tolist() == [10, 127, 127, 5]


def test_autocontrast_stretches_each_channel_and_leaves_a_flat_one() -> None:
    images = torch.tensor([50.0, 60.0, 70.0, 100.0]).view(1, 1, 2, 2).repeat(1, 3, 1, 1)
    images[:, 2] = 80.0
    out = ops.autocontrast(images, 0.3, PLUS)
    assert out[0, 0].flatten().tolist() == pytest.approx([0, 51, 102, 255], abs=1e-3)
    assert out[0, 2].unique().tolist() == [80]


def test_translation_moves_by_a_share_of_the_side_and_leaves_black() -> None:
    images = noise(height=20, width=20).float() + 1
    strength = 0.25 / ops.MOST_TRANSLATION  # a quarter of the side: 5 pixels
    left = ops.translate_x(images, strength, PLUS)
    right = ops.translate_x(images, strength, MINUS)
    down = ops.translate_y(images, strength, MINUS)
    assert torch.allclose(left[..., :-5], images[..., 5:], atol=0.05)
    assert torch.allclose(right[..., 5:], images[..., :-5], atol=0.05)
    assert torch.allclose(down[..., 5:, :], images[..., :-5, :], atol=0.05)
    assert left[..., -5:].max() < 0.05


def test_shear_leaves_the_middle_and_moves_the_edge() -> None:
    images = torch.zeros(1, 1, 41, 41)
    images[..., 20] = 255.0  # a line from top to bottom
    out = ops.shear_x(images, 1.0, torch.ones(1))[0, 0]
    assert out[20].argmax() == 20
    # At 20 rows from the middle, 0.3 of that sideways, in opposite directions.
    assert [int(out[0].argmax()) - 20, int(out[40].argmax()) - 20] == [6, -6]
    turned = ops.shear_y(images.mT.contiguous(), 1.0, torch.ones(1))[0, 0].T
    assert torch.allclose(turned, out, atol=0.1)


def test_rotation_turns_about_the_middle_by_30_degrees_at_most() -> None:
    for height, width in ((81, 81), (81, 121)):
        images = torch.zeros(2, 1, height, width)
        row, column = height // 2, width // 2
        images[..., row - 1 : row + 2, column + 29 : column + 32] = 255.0
        out = ops.rotate(images, 1.0, torch.tensor([1.0, -1.0]))
        found = [divmod(int(one.argmax()), width) for one in out.flatten(1)]
        # 30 pixels right of the middle become 26 right and 15 up or down.
        for sign, (y, x) in zip((-1, 1), sorted(found), strict=True):
            assert abs(y - row - sign * 15) <= 2
            assert abs(x - column - 26) <= 2


def test_randaugment_draws_operations_by_group_and_strength_by_magnitude() -> None:
    images = noise(1).float().repeat(64, 1, 1, 1) * 0.8
    generator = torch.Generator().manual_seed(0)
    out = ops.randaugment(images, 2, 15, random.Random(0), generator)
    assert out.shape == images.shape
    groups = {tuple(group[0].flatten()[:64].tolist()) for group in out.chunk(ops.N_GROUPS)}
    assert len(groups) >= 6
    weak = ops.randaugment(images, 2, 1, random.Random(0), generator)
    assert (weak - images).abs().mean() < 0.5 * (out - images).abs().mean()
