"""The arithmetic that papers and courses print comes out of the planner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hotlap.cli import main

GIB = 2**30


def planned(words: str, folder: Path) -> dict[str, Any]:
    """What `hotlap plan --json` writes."""
    path = folder / "plan.json"
    assert main(["plan", *words.split(), "--json", str(path)]) == 0
    plan: dict[str, Any] = json.loads(path.read_text())
    return plan


STATES = "--gpu a100-80gb --gpus 1 --precision bf16-master --optimizer adamw"


def test_a_billion_parameters_take_14_9_gib(tmp_path: Path) -> None:
    memory = planned(f"--params 1B {STATES}", tmp_path)["memory"]
    states = sum(memory[name]["value"] for name in ("weights", "gradients", "optimizer"))
    assert states / GIB == pytest.approx(14.9, abs=0.05)


@pytest.mark.parametrize(
    ("params", "tflops", "days"),
    [("2.7B", 127, 1.2), ("6.7B", 130, 3.0), ("13B", 135, 5.6), ("175B", 140, 72.3)],
)
def test_300_billion_tokens_on_480_gpus(
    params: str, tflops: int, days: float, tmp_path: Path
) -> None:
    plan = planned(
        f"--params {params} --tokens 300B --rate {tflops}e12 --recompute full --gpu a100-80gb "
        "--gpus 480 --precision bf16-master --optimizer adamw",
        tmp_path,
    )
    assert plan["days"]["value"] == pytest.approx(days, abs=0.06)


def test_gpt_3_takes_3_14e23_flop(tmp_path: Path) -> None:
    plan = planned(
        f"--params 174.6B --tokens 300B --rate 140e12 {STATES}",
        tmp_path,
    )
    assert plan["total_flops"] == pytest.approx(3.14e23, rel=0.005)


BLOOM = """--layers 70 --hidden 14336 --heads 112 --ffn 57344 --vocab 250880 --seq 2048 --batch 2048
--micro-batch 2 --gpu a100-80gb --gpus 384 --gpus-per-node 8 --interconnect 100 --precision
bf16-master --optimizer adamw --recompute full --attention plain --no-overlap --tokens 366B
--goodput 0.88 --watts 400 --co2 57 --layout"""


def test_bloom_comes_out_within_15_per_cent(tmp_path: Path) -> None:
    """1,082,990 GPU-hours, 433 MWh and 24.7 t of CO2; a step reached 36 % of the peak."""
    path = tmp_path / "plan.json"
    words = [*BLOOM.split(), "dp=8 tp=4 pp=12 zero=1", "--json", str(path)]
    assert main(["plan", *words]) == 0
    plan = json.loads(path.read_text())
    assert plan["gpu_hours"]["value"] == pytest.approx(1_082_990, rel=0.15)
    assert plan["energy_kwh"]["value"] == pytest.approx(433_196, rel=0.15)
    assert plan["co2_kg"]["value"] == pytest.approx(24_700, rel=0.15)
    assert plan["mfu"]["low"] < 0.36 < plan["mfu"]["high"]
    assert plan["fits"]


def test_llama_comes_out_within_15_per_cent(tmp_path: Path) -> None:
    """LLaMA 65B: 1,022,362 GPU-hours and 449 MWh with a PUE of 1.1."""
    plan = planned(
        "--layers 80 --hidden 8192 --heads 64 --ffn 22016 --vocab 32000 --gated --untied --no-bias "
        "--seq 2048 --batch 2048 --gpu a100-80gb --gpus 2048 --gpus-per-node 8 --interconnect 200 "
        "--precision bf16-master --optimizer adamw --recompute selective --tokens 1.4T "
        "--goodput 0.9 --watts 400 --pue 1.1",
        tmp_path,
    )
    assert plan["gpu_hours"]["value"] == pytest.approx(1_022_362, rel=0.15)
    assert plan["energy_kwh"]["value"] == pytest.approx(449_000, rel=0.15)
