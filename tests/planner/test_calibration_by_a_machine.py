"""A measured Machine sets rates, launches and links of a plan, and the plan says so."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotlap.cli import main
from hotlap.machine.ceiling_cache import cache_folder, newest
from hotlap.machine.ceilings import SMALL_STEP
from hotlap.planner.calibration import Calibration
from hotlap.planner.cluster import Gpus
from hotlap.planner.measured import SUSTAINED, USUAL_FP32, by_machine
from hotlap.planner.precision import PRECISIONS
from hotlap.records.ceilings import Ceilings
from hotlap.records.codec import from_json, write_json

NODE = Path(__file__).parents[1] / "doctor" / "machines" / "gpu_node.json"
GPT = "--layers 12 --hidden 768 --heads 12 --ffn 3072 --vocab 50304 --seq 1024 --batch 64"
HOW = "--precision bf16 --optimizer adamw --micro-batch 32 --recompute none --gpu h200-141gb"


@pytest.fixture
def ceilings() -> Ceilings:
    """Of a node with H200s."""
    return from_json(Ceilings, json.loads(NODE.read_text())["ceilings"], "")


@pytest.fixture
def kept(ceilings: Ceilings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the doctor would have left them."""
    monkeypatch.setenv("HOTLAP_CACHE_DIR", str(tmp_path / "cache"))
    folder = cache_folder()
    assert folder is not None
    folder.mkdir()
    write_json(folder / "ceilings-0.json", ceilings)
    return folder


def planned(words: str, folder: Path) -> dict[str, Any]:
    path = folder / "plan.json"
    assert main(["plan", *f"{GPT} {HOW} {words} --json {path} --layout".split(), "dp=2"]) == 0
    plan: dict[str, Any] = json.loads(path.read_text())
    return plan


def slower(ceilings: Ceilings, name: str, factor: float) -> Ceilings:
    rates = tuple(
        replace(one, value=one.value * factor) if one.name == name and one.value else one
        for one in ceilings.rates
    )
    return replace(ceilings, rates=rates)


def test_measured_numbers_take_the_place_of_shipped_ones(ceilings: Ceilings) -> None:
    gpus = Gpus("h200-141gb", 2, 8, 0.0)
    found = by_machine(Calibration(), gpus, ceilings, PRECISIONS["bf16"])
    peak = gpus.chip.dense_16bit_flops_per_s
    assert peak
    assert found.by.product_reach["h200"] == pytest.approx(SUSTAINED * 790e12 / peak)
    assert found.by.link_reach == pytest.approx(220 / 450)
    assert found.by.link_latency_s == pytest.approx(1e-5)
    assert found.gpus.host_link_gb_per_s == pytest.approx(55)
    strict = by_machine(Calibration(), gpus, ceilings, PRECISIONS["fp32-strict"])
    shipped = Calibration().fp32_reach
    assert strict.by.fp32_reach == pytest.approx(shipped * 51 / 67 / USUAL_FP32, rel=0.01)
    assert strict.by.product_reach == Calibration().product_reach


@pytest.mark.parametrize(
    ("name", "factor"), [("matmul bf16", 0.5), ("memory copy", 0.5), (SMALL_STEP, 20.0)]
)
def test_a_slower_machine_has_a_longer_step(
    name: str, factor: float, ceilings: Ceilings, kept: Path, tmp_path: Path
) -> None:
    two = "--gpus 2 --gpus-per-node 8 --machine here"
    usual = planned(two, tmp_path)["step_s"]["value"]
    write_json(kept / "ceilings-0.json", slower(ceilings, name, factor))
    assert planned(two, tmp_path)["step_s"]["value"] > 1.1 * usual


def test_the_plan_says_what_was_measured(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planned("--gpus 2 --gpus-per-node 8 --machine here", tmp_path)
    assert "products 790 TFLOP/s, copy 4,300 GB/s" in plan["calibrated_by_machine"]
    assert "calibrated by a Machine" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--gpu a100-80gb --machine here", "--machine has NVIDIA H200; --gpu is a100-80gb"),
        ("--machine /nowhere.json", "/nowhere.json"),
    ],
)
@pytest.mark.usefixtures("kept")
def test_another_machine_is_refused(
    words: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = f"{GPT} {HOW} --gpus 2 --gpus-per-node 8 {words} --layout".split()
    assert main(["plan", *given, "dp=2"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


def test_nothing_measured_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOTLAP_CACHE_DIR", str(tmp_path / "empty"))
    assert newest(cache_folder()) is None
    assert main(["plan", *f"{GPT} {HOW} --gpus 1 --machine here".split()]) == 2
    assert "nothing was measured yet" in capsys.readouterr().err
