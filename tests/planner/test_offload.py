"""What goes to the host's memory: bytes and seconds as they are reckoned by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hotlap.cli import main
from hotlap.planner.calibration import Calibration
from hotlap.planner.cluster import KINDS, Gpus
from hotlap.planner.layers import Model
from hotlap.planner.layout import Layout
from hotlap.planner.memory import training_memory
from hotlap.planner.offload import host_memory
from hotlap.planner.step import StepTime, step_time
from hotlap.planner.training import Training
from hotlap.planner.transformer import Arithmetic, TransformerSizes, transformer
from hotlap.planner.work import work_of

SEQ, HIDDEN, N_LAYERS, VOCAB = 1024, 2048, 24, 50304
TRAINING = Training(64, 4, "bf16-master", "adamw")


def gpt() -> Model:
    sizes = TransformerSizes(N_LAYERS, HIDDEN, 16, 4 * HIDDEN, VOCAB)
    return transformer("GPT", sizes, SEQ, Arithmetic())


def kept_by_hand(n_sequences: int) -> int:
    """Of one block in 16 bits, without dropout: 32 bytes a token and width, and softmax's sums."""
    tokens = n_sequences * SEQ
    norms = 2 * (2 + 2) * HIDDEN  # two norms: what they are given, what they give
    attention = 2 * 4 * HIDDEN  # queries, keys, values, and what comes out
    feed_forward = 2 * 2 * 4 * HIDDEN  # before and after the function
    sums = 4 * 16  # one for each head, in fp32
    return tokens * (norms + attention + feed_forward + sums)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_two_blocks_stay_and_the_rest_lies_with_the_host(recompute: Any) -> None:
    model = gpt()
    kept, sent = (Layout(recompute=recompute, offload_activations=flag) for flag in (0, 1))
    block = kept_by_hand(4) if recompute == "none" else 4 * SEQ * HIDDEN * 2
    host = host_memory(model, TRAINING, sent)
    assert host.activations == N_LAYERS * block
    assert host.optimizer == 0
    before, after = (training_memory(model, TRAINING, one) for one in (kept, sent))
    assert before.activations - after.activations == (N_LAYERS - 2) * block
    assert (before.weights, before.logits) == (after.weights, after.logits)


def test_a_stage_sends_what_all_its_micro_batches_keep() -> None:
    layout = Layout(pp=4, recompute="none", offload_activations=1)
    host = host_memory(gpt(), TRAINING, layout)
    assert host.activations == 4 * (N_LAYERS // 4) * kept_by_hand(4)


def step(layout: Layout, link_gb_per_s: float, overlaps: bool = True) -> StepTime:
    training = Training(64, 4, "bf16-master", "adamw", overlaps=overlaps)
    gpus = Gpus("a100-80gb", 1, 1, 0.0, own_host_link_gb_per_s=link_gb_per_s)
    return step_time(work_of(gpt(), gpus, training, layout), Calibration())


def test_a_copy_that_computing_hides_costs_nothing() -> None:
    sent = Layout(offload_activations=1)
    assert step(sent, 1e6).offload == 0
    assert step(sent, 1e6).total == pytest.approx(step(Layout(), 1e6).total)


def test_a_copy_that_nothing_hides_goes_out_and_comes_back() -> None:
    by_hand = 16 * 2 * N_LAYERS * kept_by_hand(4) / 25e9  # 16 micro-batches
    alone = step(Layout(offload_activations=1), 25, overlaps=False)
    assert alone.offload == pytest.approx(by_hand)
    # Beside computing, what shows is what is longer than it, forward and backward by themselves.
    plain = step(Layout(), 25)
    busy = plain.products + plain.streams
    slow = step(Layout(offload_activations=1), 2.5)
    update_s = gpt().n_params * (2 * 14 + 2 * 2) / 2039e9 / Calibration().stream_reach
    assert slow.offload == pytest.approx(10 * by_hand - (busy - update_s), rel=0.01)


def test_the_optimizer_with_the_host_by_hand() -> None:
    model = gpt()
    layout = Layout(offload=1)
    n = model.n_params
    assert host_memory(model, TRAINING, layout).optimizer == n * (4 + 4 + 4 + 2)
    # Gradients there and weights back, 2 bytes each; 24 of state and master and these 4 moved.
    by_hand = n * (4 / 25e9 + 28 / 117e9)
    assert step(layout, 25).offload == pytest.approx(by_hand)
    shared = Gpus("a100-80gb", 8, 8, 0.0, own_host_link_gb_per_s=25)
    eight = step_time(work_of(model, shared, TRAINING, Layout(shard=8, offload=1)), Calibration())
    assert eight.offload == pytest.approx(n / 8 * (4 / 25e9 + 8 * 28 / 117e9))


@pytest.mark.parametrize("kind", KINDS)
def test_every_gpu_has_a_link_to_its_host(kind: str) -> None:
    assert Gpus(kind, 1, 1, 0.0).host_link_gb_per_s >= 12


LONG = (
    "--layers 80 --hidden 8192 --heads 64 --kv-heads 8 --ffn 28672 --gated --no-bias --untied "
    "--vocab 32000 --seq 32768 --batch 64 --precision bf16-master --optimizer adamw "
    "--gpu h100-80gb --gpus 64 --gpus-per-node 8 --interconnect 400"
)
LARGE_FOR_ONE = (
    "--layers 32 --hidden 4096 --heads 32 --ffn 16384 --vocab 32000 --seq 2048 --batch 8 "
    "--precision bf16-master --optimizer adamw --gpu a100-80gb --gpus 1"
)


def planned(words: str, folder: Path) -> dict[str, Any]:
    path = folder / "plan.json"
    assert main(["plan", *words.split(), "--json", str(path)]) == 0
    plan: dict[str, Any] = json.loads(path.read_text())
    return plan


def test_a_search_offloads_activations_where_the_host_is_known_to_have_room(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without = planned(LONG, tmp_path)
    assert without["host_memory"] == {}
    assert "offload" not in without["layout"]
    plenty = planned(f"{LONG} --host-memory 2000", tmp_path)
    assert "offload_activations=1" in plenty["layout"]
    assert plenty["step_s"]["value"] < without["step_s"]["value"] / 1.05
    assert 0 < plenty["host_memory"]["total"]["value"] * 8 <= plenty["host_limit_bytes"]
    assert "in the host's memory, a GPU: total" in capsys.readouterr().out
    little = planned(f"{LONG} --host-memory 10", tmp_path)
    assert little["layout"] == without["layout"]
    slow = planned(f"{LONG} --host-memory 2000 --host-link 1", tmp_path)
    assert "offload" not in slow["layout"]
    assert slow["step_s"]["value"] == without["step_s"]["value"]


def test_the_host_is_the_last_resort_where_its_memory_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planned(LARGE_FOR_ONE, tmp_path)
    assert "offload=1" in plan["layout"]
    assert plan["causes_s"]["offload"] > 0
    assert plan["host_memory"]["optimizer"]["value"] == pytest.approx(
        14 * plan["model"]["parameters"]
    )
    assert "which --host-memory would check" in capsys.readouterr().out
    assert main(["plan", *f"{LARGE_FOR_ONE} --host-memory 50".split()]) == 2
    assert "no layout of transformer fits" in capsys.readouterr().err


def test_a_given_layout_that_the_host_cannot_hold_does_not_fit(tmp_path: Path) -> None:
    words = f"{LARGE_FOR_ONE} --micro-batch 1 --recompute full --layout offload=1"
    assert planned(f"{words} --host-memory 200", tmp_path)["fits"] is True
    assert planned(f"{words} --host-memory 50", tmp_path)["fits"] is False
