"""What kernels of eager mode cost, and what a checkpoint computes again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hotlap.planner.calibration import Calibration
from hotlap.planner.cluster import Gpus
from hotlap.planner.counting import StageWork
from hotlap.planner.eager import MIXED, OUT_OF_ORDER, OWN_BATCH_NORM, PLAIN, SLOW, traffic_of
from hotlap.planner.layers import Model
from hotlap.planner.layout import Layout, Recompute
from hotlap.planner.memory import training_memory
from hotlap.planner.operations import reordered_bytes
from hotlap.planner.step import step_time
from hotlap.planner.trace import Request, trace
from hotlap.planner.training import Training
from hotlap.planner.work import work_of

ONE = Gpus("h200-141gb", 1, 1, 0.0)
N = 64 * 32
GPT = {"n_layers": 3, "n_heads": 4, "width": 128, "vocab_size": 4000, "context": 64}


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype)


def test_kernels_are_slow_by_what_they_do() -> None:
    x, y = numbers(64, 32), numbers(64, 32)
    half = numbers(64, 32, dtype=torch.bfloat16)
    assert traffic_of("add", (x, y), x).moved == 3 * 4 * N
    assert traffic_of("add", (x, y), x).eager == pytest.approx(PLAIN * 3 * 4 * N)
    assert traffic_of("add", (x, half), x).eager == pytest.approx(MIXED * 10 * N)
    assert traffic_of("_to_copy", (x,), half).eager == pytest.approx(MIXED * 6 * N)
    assert traffic_of("clone", (x.T,), x).eager == pytest.approx(OUT_OF_ORDER * 8 * N)
    assert traffic_of("clone", (x,), x).eager == pytest.approx(PLAIN * 8 * N)
    assert traffic_of("cat", ([x, y],), numbers(128, 32)).eager == SLOW["cat"] * 16 * N


@pytest.mark.parametrize("name", ["native_batch_norm", "_native_batch_norm_legit"])
def test_a_norm_over_the_batch_reads_twice_and_in_bf16_is_torchs_own(name: str) -> None:
    shape = (2, 16, 8, 8)
    n, x = 2 * 16 * 64, numbers(2, 16, 8, 8)
    cudnn = traffic_of(name, (x,), x)
    assert cudnn.moved == 3 * 4 * n
    assert cudnn.batch_norm == 0.0
    x = numbers(*shape, dtype=torch.bfloat16)
    own = traffic_of(name, (x,), x)
    assert own.moved == 3 * 2 * n
    assert (own.eager, own.batch_norm) == (0.0, OWN_BATCH_NORM * own.moved)


def gpt(autocast: str = "bf16") -> Model:
    return trace(Request("hotlap.models.gpt:GPT", GPT, 64, None, 3, autocast, False, True))


def test_a_checkpoint_ends_before_the_last_product_of_its_block() -> None:
    model = gpt()
    assert model.recomputed is not None
    again = 0.0
    for block in model.blocks:
        last = max(block.matmuls, key=lambda one: one.k)  # from four times the width back to it
        again += sum(one.flops for one in block.matmuls if one is not last)
    products = sum(n * one.flops for layer, n in model.groups() for one in layer.matmuls)
    assert model.recomputed.products == pytest.approx(again / products, rel=1e-6)
    assert 0 < model.recomputed.traffic < 1
    assert 0 < model.recomputed.kernels < 1


def test_a_stage_without_the_output_layer_computes_more_of_itself_again() -> None:
    model = gpt()
    assert model.recomputed is not None
    training, gpus = Training(8, 1, "bf16", "adamw"), Gpus("h200-141gb", 3, 8, 0.0)

    def again(stage: StageWork) -> float:
        """Of forward's products, beside the two that a gradient takes."""
        return stage.backward.product_s / stage.forward.product_s

    plain, full = (
        work_of(model, gpus, training, Layout(pp=3, recompute=how)) for how in ("none", "full")
    )
    shares = [again(one) - again(two) for one, two in zip(full.stages, plain.stages, strict=True)]
    block = model.blocks[0]
    last = max(block.matmuls, key=lambda one: one.k)
    expected = 1 - last.flops / sum(one.flops for one in block.matmuls)
    assert shares[0] == pytest.approx(expected, rel=0.1)
    assert shares[-1] < shares[0]


def test_compiling_saves_bytes_and_the_loss_too_saves_its_logits() -> None:
    model = gpt()
    plain = Training(32, 32, "bf16", "adamw")
    compiled = replace(plain, is_compiled=True)
    with_loss = replace(compiled, is_loss_compiled=True)

    def streams(training: Training) -> float:
        return step_time(work_of(model, ONE, training, Layout()), Calibration()).streams

    assert streams(with_loss) < streams(compiled) < streams(plain)
    n_logits = 32 * 64 * 4000
    saved = [training_memory(model, training, Layout()).total for training in (compiled, with_loss)]
    # Left are the output and its gradient in bf16, of 12 bytes a logit; some per cent fragments.
    assert saved[0] - saved[1] == pytest.approx((12 - 4) * n_logits * 1.03, rel=0.01)


def test_convolutions_in_another_order_hold_copies_of_their_images() -> None:
    image, weight, output = numbers(2, 3, 8, 8), numbers(16, 3, 3, 3), numbers(2, 16, 8, 8)
    both = 4 * 2 * (3 + 16) * 64
    assert reordered_bytes("convolution", (image, weight, None), output) == both
    gradients = (image, weight, None)
    assert reordered_bytes("convolution_backward", (output, image, weight), gradients) == both
    assert reordered_bytes("relu", (image,), image) == 0
    asked = Request("hotlap.models.resnet:resnet18", {}, None, 64, 3, "bf16", False, False)
    in_order, reordered = trace(asked), trace(replace(asked, reorders_images=True))

    def most(model: Model) -> float:
        return max(64 * one.per_sample_bytes + one.fixed_bytes for one in model.moments_recomputed)

    assert most(reordered) > most(in_order)


def test_a_compiler_launches_no_casts_and_no_checkpoints() -> None:
    mixed, plain = gpt(), gpt("")
    assert plain.compiled_share == 1.0
    assert mixed.compiled_share < 0.7

    def host_s(model: Model, is_compiled: bool, recompute: Recompute) -> float:
        training = Training(
            1, 1, "bf16" if model is mixed else "fp32", "sgd", is_compiled=is_compiled
        )
        work = work_of(model, ONE, training, Layout(recompute=recompute))
        return step_time(work, Calibration()).host

    # As many kernels are left as without casts, up to those around the loss.
    assert host_s(mixed, True, "none") == pytest.approx(host_s(plain, True, "none"), rel=0.2)
    dearer = [host_s(mixed, one, "full") / host_s(mixed, one, "none") for one in (False, True)]
    assert dearer[1] < 1.5 < dearer[0]


def test_the_gradient_of_compiled_fp32_logits_takes_their_place() -> None:
    for precision, recompute, n_copies in (
        ("fp32", "none", 1),
        ("fp32", "full", 2),
        ("bf16", "none", 2),
    ):
        model = gpt("bf16" if precision == "bf16" else "")
        training = Training(8, 8, precision, "sgd", is_compiled=True, is_loss_compiled=True)
        memory = training_memory(model, training, Layout(recompute=recompute))
        assert memory.logits == pytest.approx(n_copies * 8 * model.output_bytes)
