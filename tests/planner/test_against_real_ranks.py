"""Memory and collectives of FSDP, tensor parallel and a pipeline are those of real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from running import environment

from hotlap.cli import main
from hotlap.planner.collectives import collectives
from hotlap.planner.layers import Model
from hotlap.planner.layout import Layout
from hotlap.planner.memory import in_flight_micro_batches, training_memory
from hotlap.planner.stages import params_of, stage_params, stages
from hotlap.planner.training import Training
from hotlap.planner.transformer import Arithmetic, TransformerSizes, transformer

SCRIPT = Path(__file__).parent / "measured_ranks.py"
PLAIN = Training(8, 4, "fp32", "adamw")


def planned(is_tied: bool = True) -> Model:
    sizes = TransformerSizes(4, 64, 4, 256, 512, n_positions=32, is_tied=is_tied)
    return transformer("GPT", sizes, 32, Arithmetic(4, 4))


def measured(what: str, n_ranks: int, folder: Path) -> list[dict[str, Any]]:
    """What each rank holds and sends."""
    result = folder / "result.json"
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_ranks)]
    done = subprocess.run(
        [sys.executable, *words, str(SCRIPT), what, str(result)],
        env=environment({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    ranks: list[dict[str, Any]] = json.loads(result.read_text())
    return ranks


@pytest.mark.timeout(240)
def test_fsdp_holds_and_sends_what_was_planned(tmp_path: Path) -> None:
    ranks = measured("fsdp", 2, tmp_path)
    model, layout = planned(), Layout(shard=2)
    memory = training_memory(model, PLAIN, layout)
    for name in ("weights", "gradients", "optimizer"):
        assert {rank[name] for rank in ranks} == {getattr(memory, name)}
    counts = collectives(model, PLAIN, layout)
    for rank in ranks:
        assert rank["sent"] == {
            "_allgather_base_": counts["all_gather"],
            "_reduce_scatter_base_": counts["reduce_scatter"],
        }


@pytest.mark.timeout(240)
def test_tensor_parallel_holds_and_sends_what_was_planned(tmp_path: Path) -> None:
    ranks = measured("tensor", 2, tmp_path)
    model, layout = planned(), Layout(tp=2)
    assert {rank["block"] for rank in ranks} == {4 * params_of(model.blocks[0], layout).total}
    training = Training(4, 4, "fp32", "adamw")
    for rank in ranks:
        assert rank["sent"] == collectives(model, training, layout)


@pytest.mark.timeout(240)
def test_stages_of_a_pipeline_hold_and_send_what_was_planned(tmp_path: Path) -> None:
    ranks = measured("pipeline", 4, tmp_path)
    model, layout = planned(is_tied=False), Layout(pp=4)
    training = Training(8, 1, "fp32", "adamw")
    for rank, stage in zip(ranks, stages(model, layout), strict=True):
        assert rank["weights"] == 4 * stage_params(stage, model, layout).total
        assert rank["in_flight"] == in_flight_micro_batches(stage, training, layout)
    assert ranks[0]["sent"]["send"] == collectives(model, training, layout)["send"]


@pytest.mark.timeout(240)
def test_an_interleaved_pipeline_holds_what_was_planned(tmp_path: Path) -> None:
    ranks = measured("interleaved", 2, tmp_path)
    model, layout = planned(is_tied=False), Layout(pp=2, v=2, schedule="interleaved")
    training = Training(8, 1, "fp32", "adamw")
    for rank, stage in zip(ranks, stages(model, layout), strict=True):
        assert rank["weights"] == 4 * stage_params(stage, model, layout).total
        assert rank["in_flight"] == in_flight_micro_batches(stage, training, layout)


@pytest.mark.timeout(240)
def test_fsdp_casts_the_residual_stream_and_autocast_does_not(tmp_path: Path) -> None:
    (rank,) = measured("norms", 1, tmp_path)
    path = tmp_path / "plan.json"
    sizes = "--layers 4 --hidden 64 --heads 4 --ffn 256 --vocab 512 --seq 32 --batch 16"
    words = f"{sizes} --precision bf16 --optimizer adamw --micro-batch 8 --recompute full".split()
    gpus = ["--gpu", "a100-80gb", "--gpus", "2", "--gpus-per-node", "2"]
    found = {}
    for how, layout in (("autocast", "dp=2"), ("sharded", "shard=2")):
        assert main(["plan", *words, *gpus, "--json", str(path), "--layout", layout]) == 0
        found[how] = json.loads(path.read_text())["memory"]["activations"]["value"]
        # Full recomputation keeps each block's input, and one block whole.
        n_bytes = rank[how][0]
        kept = 32 * 64 * (4 * n_bytes + 2 * (n_bytes + 2) + 2 * 4 + 2 * 8) + 4 * 32 * 4
        ends = 32 * 8 + 32 * 64 * (n_bytes + 2)
        assert found[how] == 8 * (kept + ends)
    assert rank == {"autocast": [4], "sharded": [2]}
