"""Memory by category: published figures, and the rules of sharding and pipelines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotlap.planner.calibration import Calibration
from hotlap.planner.cluster import Gpus
from hotlap.planner.collectives import collectives
from hotlap.planner.layers import Model
from hotlap.planner.layout import Layout
from hotlap.planner.memory import (
    GIB,
    evaluation_memory,
    in_flight_micro_batches,
    largest_micro_batch,
    training_memory,
)
from hotlap.planner.precision import OPTIMIZERS, PRECISIONS
from hotlap.planner.sendings import Sendings
from hotlap.planner.stages import stages
from hotlap.planner.step import step_time
from hotlap.planner.training import Training
from hotlap.planner.transformer import Arithmetic, TransformerSizes, transformer
from hotlap.planner.work import work_of


def gpt(hidden: int = 1024, n_layers: int = 8, heads: int = 16, seq: int = 512) -> Model:
    sizes = TransformerSizes(n_layers, hidden, heads, 4 * hidden, 51200, has_dropout=True)
    return transformer("GPT", sizes, seq, Arithmetic(fused_attention=False))


MIXED = Training(64, 1, "bf16-master", "adamw")


@pytest.mark.parametrize(
    ("hidden", "n_layers", "heads", "micro", "batch", "layout", "published_gib"),
    [
        (6144, 48, 64, 4, 4, Layout(tp=8), 59.25),
        (6144, 48, 64, 4, 4, Layout(tp=8, sp=1, recompute="selective"), 9.56),
        (12288, 96, 96, 1, 64, Layout(tp=8, pp=8, v=3), 66.84),
        (12288, 96, 96, 1, 64, Layout(tp=8, pp=8, v=3, sp=1, recompute="selective"), 12.35),
        (20480, 105, 128, 1, 280, Layout(tp=8, pp=35, v=3), 114.02),
        (25600, 128, 160, 1, 512, Layout(tp=8, pp=64), 131.25),
        (25600, 128, 160, 1, 512, Layout(tp=8, pp=64, sp=1, recompute="selective"), 26.56),
    ],
)
def test_activations_are_those_of_korthikanti(
    hidden: int,
    n_layers: int,
    heads: int,
    micro: int,
    batch: int,
    layout: Layout,
    published_gib: float,
) -> None:
    model = gpt(hidden, n_layers, heads, seq=2048)
    training = Training(batch, micro, "bf16-master-fp32grad", "adamw")
    found = training_memory(model, training, layout).activations / GIB
    assert found == pytest.approx(published_gib, rel=0.01)


@pytest.mark.parametrize(
    ("layout", "bytes_per_parameter"),
    [
        (Layout(dp=8), 16),
        (Layout(dp=8, zero=1), 4 + 12 / 8),
        (Layout(dp=8, zero=2), 2 + 14 / 8),
        (Layout(shard=8), 16 / 8),
        (Layout(dp=2, shard=4), 16 / 4),
        (Layout(dp=8, offload=1), 4),
    ],
    ids=str,
)
def test_states_are_divided_as_zero_and_fsdp_divide_them(
    layout: Layout, bytes_per_parameter: float
) -> None:
    model = gpt()
    states = training_memory(model, MIXED, layout).states
    assert states == pytest.approx(bytes_per_parameter * model.n_params)


def test_tensor_parallel_divides_gradients_and_optimizer_too() -> None:
    model = gpt()
    one, four = (training_memory(model, MIXED, Layout(tp=tp)) for tp in (1, 4))
    assert four.gradients / one.gradients == pytest.approx(four.weights / one.weights)
    assert four.optimizer / one.optimizer == pytest.approx(0.25, rel=0.01)


@pytest.mark.parametrize(
    ("precision", "optimizer", "bytes_per_parameter"),
    [
        ("fp32", "adamw", 16),
        ("bf16", "adamw", 16),
        ("bf16-master", "adamw", 16),
        ("bf16-master-fp32grad", "adamw", 18),
        ("pure-bf16", "adamw", 8),
        ("fp32", "sgd", 8),
        ("fp32", "sgd-momentum", 12),
        ("fp32", "lion", 12),
        ("bf16-master", "adamw-8bit", 10),
        ("fp32", "adafactor", 8),
    ],
)
def test_each_recipe_counts_its_own_states(
    precision: str, optimizer: str, bytes_per_parameter: int
) -> None:
    model = gpt()
    states = training_memory(model, Training(1, 1, precision, optimizer), Layout()).states
    assert states == pytest.approx(bytes_per_parameter * model.n_params)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_recipe_has_a_memory_and_evaluation_needs_less(
    precision: str, optimizer: str
) -> None:
    model, training = gpt(), Training(4, 4, precision, optimizer)
    training_bytes = training_memory(model, training, Layout())
    evaluation = evaluation_memory(model, training, Layout())
    assert 0 < evaluation.total < training_bytes.total
    assert evaluation.gradients == evaluation.optimizer == 0


def test_the_first_stage_holds_as_many_micro_batches_as_there_are_stages() -> None:
    model, layout = gpt(n_layers=8), Layout(pp=4)
    held = [in_flight_micro_batches(stage, MIXED, layout) for stage in stages(model, layout)]
    assert held == [4, 3, 2, 1]
    few = replace(MIXED, batch=2)
    assert in_flight_micro_batches(stages(model, layout)[0], few, layout) == 2
    gpipe = replace(layout, schedule="gpipe")
    assert in_flight_micro_batches(stages(model, gpipe)[0], MIXED, gpipe) == 64


def test_blocks_that_stay_gathered_take_memory_and_save_collectives() -> None:
    model, training = gpt(), Training(64, 1, "bf16-master", "adamw")
    lets_go, keeps = Layout(shard=4), Layout(shard=4, reshard=0)
    kept = training_memory(model, training, keeps).unsharded
    assert kept > 2 * model.n_params
    assert kept > training_memory(model, training, lets_go).unsharded
    again, once = (
        collectives(model, training, Layout(shard=4, pp=2, reshard=reshard)) for reshard in (1, 0)
    )
    assert again["reduce_scatter"] == 16 * once["reduce_scatter"]
    assert once["all_gather"] == once["reduce_scatter"] == 4 + 1


def test_a_pipeline_without_bubble_pays_in_activations() -> None:
    """2p - 1 micro-batches; no wait if F, B and W are equal (https://arxiv.org/abs/2401.10241)."""
    model, plain = gpt(8192, 8, 64, seq=2048), Layout(pp=4)
    training = Training(64, 1, "bf16-master", "adamw")
    filled = replace(plain, schedule="zero-bubble")
    held = [in_flight_micro_batches(stage, training, filled) for stage in stages(model, filled)]
    assert held == [7, 5, 3, 1]
    gpus = Gpus("a100-80gb", 4, 8, 0.0)
    before, after = (
        step_time(work_of(model, gpus, training, layout), Calibration()).bubble
        for layout in (plain, filled)
    )
    assert 0 <= after < before / 2


def test_interleaving_holds_more_by_the_published_factor() -> None:
    model = gpt(n_layers=32)
    for p, v in ((4, 2), (8, 2), (8, 4)):
        layout = Layout(pp=p, v=v, schedule="interleaved")
        held = in_flight_micro_batches(stages(model, layout)[0], MIXED, layout)
        assert held / p == pytest.approx(1 + (p - 1) / (p * v))


def test_full_recomputation_keeps_inputs_and_one_block() -> None:
    model = gpt()
    block = model.blocks[0]
    found = training_memory(model, MIXED, Layout(recompute="full")).activations
    ends = model.stem.kept.whole + model.head.kept.whole
    inputs = len(model.blocks) * block.input_bytes
    assert found == pytest.approx(inputs + block.kept.whole + block.kept.cut + ends)


def test_the_largest_micro_batch_is_the_last_that_fits() -> None:
    model, limit = gpt(), 20 * GIB
    most = largest_micro_batch(model, MIXED, Layout(), limit)

    def needed(b: int) -> float:
        return training_memory(model, replace(MIXED, micro_batch=b), Layout()).total

    assert needed(most) <= limit < needed(most + 1)
    assert largest_micro_batch(model, MIXED, Layout(), 1 * GIB) == 0


def test_experts_are_divided_by_expert_parallel_alone() -> None:
    sizes = TransformerSizes(4, 512, 8, 2048, 32000, n_experts=8, experts_per_token=2)
    model = transformer("experts", sizes, 512, Arithmetic())
    one, four = (training_memory(model, MIXED, Layout(dp=4, ep=ep)) for ep in (1, 4))
    experts = sum(layer.n_params_expert for layer in model.blocks)
    assert one.weights - four.weights == pytest.approx(2 * experts * 3 / 4)


def test_experts_are_never_divided_twice() -> None:
    """Ranks of expert parallelism are among those that shard: together they hold all, once."""
    sizes = TransformerSizes(4, 512, 8, 2048, 32000, n_experts=8, experts_per_token=2)
    model = transformer("experts", sizes, 512, Arithmetic())
    for layouts in (
        [Layout(shard=8, ep=ep) for ep in (1, 2, 8)],
        [Layout(dp=2, shard=4, ep=ep) for ep in (1, 4)],
    ):
        states = [training_memory(model, MIXED, layout).states for layout in layouts]
        assert states == pytest.approx([states[0]] * len(states))
        assert states[0] == pytest.approx(16 * model.n_params / layouts[0].shard)
    more = training_memory(model, MIXED, Layout(dp=2, shard=4, ep=8)).states
    experts = sum(layer.n_params_expert for layer in model.blocks)
    assert more == pytest.approx(16 * ((model.n_params - experts) / 4 + experts / 8))
    one, eight = (training_memory(model, MIXED, Layout(dp=8, ep=ep, zero=1)) for ep in (1, 8))
    assert eight.optimizer == pytest.approx(one.optimizer)


def test_experts_that_one_rank_alone_has_are_not_sent() -> None:
    sizes = TransformerSizes(4, 512, 8, 2048, 32000, n_experts=8, experts_per_token=2)
    model, gpus = transformer("experts", sizes, 512, Arithmetic()), Gpus("a100-80gb", 8, 8, 0.0)
    block = model.blocks[0]
    for layout in (Layout(shard=8, ep=8), Layout(shard=8)):
        sent = Sendings(model, gpus, MIXED, layout).gathered(block).link_s
        shared = block.total_params - block.n_params_expert
        gathered = shared + (block.n_params_expert if layout.ep == 1 else 0)
        assert sent == pytest.approx(2 * gathered * 7 / 8 / 300e9)
