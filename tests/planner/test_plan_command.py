"""`hotlap plan` as a user types it: the document, the text, the recipe, the Run beside it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from making import make_rank, make_table, merged

from hotlap.cli import main
from hotlap.errors import UsageError
from hotlap.planner.budget import ALPHA, BETA, LOSS_A, LOSS_B, compute_optimal, loss
from hotlap.planner.emit import Source, recipe_text
from hotlap.planner.layout import parse_layout
from hotlap.records.plan import Plan
from hotlap.records.run import Flops, Memory, Run
from hotlap.trainer.recipe import resolve

GPT = "--layers 12 --hidden 768 --heads 12 --ffn 3072 --vocab 50257 --seq 1024"
HOW = "--precision bf16 --optimizer adamw"
NODE = "--gpu h100-80gb --gpus 8 --gpus-per-node 8"
CLUSTER = "--gpu a100-80gb --gpus 512 --gpus-per-node 8 --interconnect 100"
LARGE = "--layers 96 --hidden 12288 --heads 96 --ffn 49152 --vocab 51200 --seq 2048 --batch 1536"


def planned(words: list[str] | str, folder: Path) -> dict[str, Any]:
    path = folder / "plan.json"
    given = words.split() if isinstance(words, str) else words
    assert main(["plan", *given, "--json", str(path)]) == 0
    plan: dict[str, Any] = json.loads(path.read_text())
    return plan


def test_the_document_has_the_keys_that_others_rely_on(tmp_path: Path) -> None:
    plan = planned(f"{GPT} --batch 256 {HOW} {NODE} --tokens 10B --co2 50 --price 2", tmp_path)
    valued = ("step_s", "samples_per_s", "mfu", "days", "gpu_hours", "energy_kwh", "co2_kg")
    for name in (*valued, "price"):
        assert plan[name]["low"] < plan[name]["value"] < plan[name]["high"], name
    parts = {name: one["value"] for name, one in plan["memory"].items()}
    assert parts.pop("total") == pytest.approx(sum(parts.values()))
    assert sum(plan["causes_s"].values()) == pytest.approx(plan["step_s"]["value"])
    assert plan["fits"] is True
    assert plan["gpu_hours"]["value"] == pytest.approx(plan["days"]["value"] * 24 * 8)
    assert plan["layout"]
    assert Plan.read(tmp_path / "plan.json").layout == plan["layout"]


def test_the_text_is_one_screen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned(f"{LARGE} --precision bf16-master --optimizer adamw {CLUSTER} --tokens 300B", tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 45
    for word in ("fits with", "MFU", "GPU-hours", "other layouts", "<- this plan", "assumed:"):
        assert any(word in line for line in lines), word


def test_a_search_for_512_gpus_finds_a_layout_and_says_why_others_lost(tmp_path: Path) -> None:
    plan = planned(f"{LARGE} --precision bf16-master --optimizer adamw {CLUSTER}", tmp_path)
    assert plan["fits"]
    assert plan["memory"]["total"]["value"] <= plan["memory_limit_bytes"]
    assert len(plan["alternatives"]) >= 3
    for other in plan["alternatives"]:
        assert other["reason"]
        if other["fits"]:
            assert other["step_s"] >= plan["step_s"]["value"]
    sizes = dict(word.split("=") for word in plan["layout"].split() if "=" in word)
    product = 1
    for name in ("dp", "shard", "tp", "cp", "pp"):
        product *= int(sizes.get(name, 1))
    assert product == 512


def test_a_batch_that_is_no_power_of_two_is_not_cut_for_that(tmp_path: Path) -> None:
    plan = planned(f"{GPT} --batch 24 {HOW} --gpu h200-141gb --gpus 1", tmp_path)
    assert plan["training"]["micro_batch"] == 24
    plan = planned(f"{GPT} --batch 1920 {HOW} {NODE}", tmp_path)  # 240 a GPU: too many at a time
    assert 240 % plan["training"]["micro_batch"] == 0
    assert plan["training"]["micro_batch"] > 16


def test_more_gpus_at_one_batch_are_used_less_well(tmp_path: Path) -> None:
    plan = planned(f"{LARGE} --precision bf16-master --optimizer adamw {CLUSTER}", tmp_path)
    points = plan["scaling"]
    assert len(points) >= 3
    assert [point["gpus"] for point in points] == sorted(point["gpus"] for point in points)
    assert points[-1]["efficiency"] < max(point["efficiency"] for point in points) == 1.0
    assert all(point["is_efficient"] == (point["efficiency"] >= 0.8) for point in points)


def test_a_layout_that_does_not_fit_is_an_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = f"{LARGE} --micro-batch 1 --recompute none {HOW} {CLUSTER} --layout"
    plan = planned([*words.split(), "dp=512"], tmp_path)
    assert plan["fits"] is False
    assert plan["largest_micro_batch"] == 0
    assert "DOES NOT FIT" in capsys.readouterr().out


def test_a_config_and_its_sizes_give_the_same_plan(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps(
            {
                "model_type": "gpt2",
                "n_layer": 12,
                "n_embd": 768,
                "n_head": 12,
                "n_positions": 1024,
                "vocab_size": 50257,
            }
        )
    )
    step = f"--batch 64 {HOW} {NODE}"
    by_config = planned(f"{config} --seq 1024 {step}", tmp_path)
    by_sizes = planned(f"{GPT} {step}", tmp_path)
    assert by_config["model"] | {"name": ""} == by_sizes["model"] | {"name": ""}
    assert by_config["step_s"] == by_sizes["step_s"]


def test_a_budget_buys_tokens_and_a_compute_optimal_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    planned(f"{GPT} --batch 256 {HOW} {NODE} --budget 100gpu-hours", tmp_path)
    said = capsys.readouterr().out
    assert "100 GPU-hours" in said
    assert "Chinchilla" in said


@pytest.mark.parametrize("flops", [1e20, 5.76e23])
def test_no_other_split_of_a_budget_has_a_lower_loss(flops: float) -> None:
    best = compute_optimal(flops)
    assert 6 * best.n_params * best.n_tokens == pytest.approx(flops)
    for factor in (0.8, 0.97, 1.03, 1.25):
        other = best.n_params * factor
        assert loss(other, flops / 6 / other) > best.loss
    # At the optimum both terms fall equally fast.
    left = ALPHA * LOSS_A / best.n_params**ALPHA
    assert left == pytest.approx(BETA * LOSS_B / best.n_tokens**BETA)


def test_chinchilla_has_about_20_tokens_a_parameter() -> None:
    best = compute_optimal(5.76e23)
    assert 15 < best.n_tokens / best.n_params < 30


@pytest.mark.parametrize(
    ("layout", "recompute", "expected"),
    [
        ("dp=8", "none", {"dp": 8, "shard": 1}),
        ("shard=8", "full", {"shard": 8}),
        ("dp=4 tp=2 sp=1", "none", {"tp": 2, "sequence_parallel": True}),
        ("dp=2 pp=4", "none", {"pp": 4, "micro_batches": 16}),
    ],
)
def test_a_plan_is_emitted_as_a_recipe_that_the_trainer_takes(
    layout: str,
    recompute: str,
    expected: dict[str, object],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe = tmp_path / "plan.toml"
    words = f"{GPT} --batch 64 --micro-batch 2 --recompute {recompute} {HOW} {NODE} --tokens 1B"
    plan = planned([*words.split(), "--emit", str(recipe), "--layout", layout], tmp_path)
    settings = resolve(str(recipe))
    for name, value in expected.items():
        assert getattr(settings.mesh, name) == value
    mesh, loop = settings.mesh, settings.loop
    assert loop.batch * loop.accumulate * mesh.dp * mesh.shard == 64
    assert settings.model.n_layers == 12
    assert settings.compute.checkpoint_blocks == (1 if recompute == "full" else 0)
    assert loop.steps == -(-1_000_000_000 // (64 * 1024))
    last = capsys.readouterr().out.splitlines()[-1].strip()
    hours = re.fullmatch(
        rf"hotlap submit --gpu h100-80gb --gpus 8 --hours (\d+) hotlap train {recipe}", last
    )
    assert hours
    assert int(hours[1]) >= plan["days"]["high"] * 24


def test_a_search_that_is_emitted_finds_what_the_trainer_has(tmp_path: Path) -> None:
    recipe = tmp_path / "plan.toml"
    sizes = "--layers 40 --hidden 5120 --heads 40 --ffn 20480 --vocab 50304 --seq 1024"
    words = f"{sizes} --batch 512 {HOW} {CLUSTER}"
    anything = planned(words, tmp_path)
    plan = planned(f"{words} --emit {recipe}", tmp_path)
    assert anything["step_s"]["value"] <= plan["step_s"]["value"]
    mesh = resolve(str(recipe)).mesh
    assert mesh.pp * mesh.dp * mesh.shard * mesh.tp == 512


def test_how_a_training_is_written_is_emitted(tmp_path: Path) -> None:
    words = f"{GPT} --batch 64 --micro-batch 2 --recompute none {HOW} {NODE} --layout"
    planned([*words.split(), "dp=8"], tmp_path)
    plan = Plan.read(tmp_path / "plan.json")
    plan = replace(plan, model=replace(plan.model, unit="images"))
    source = Source(None, "my.models:make", {}, 224, is_compiled=True, is_channels_last=True)
    recipe = tmp_path / "plan.toml"
    recipe.write_text(recipe_text(plan, parse_layout("dp=8", "none"), source))
    compute = resolve(str(recipe)).compute
    assert (compute.compile, compute.channels_last) == ("default", True)
    half_tf32 = replace(plan, training=replace(plan.training, precision="fp32"))
    with pytest.raises(UsageError, match="choose tf32 or fp32-strict"):
        recipe_text(half_tf32, parse_layout("dp=8", "none"), replace(source, is_convolutional=True))


def test_a_factory_and_its_arguments_are_emitted(tmp_path: Path) -> None:
    words = f"{GPT} --batch 64 --micro-batch 2 --recompute none {HOW} {NODE} --layout"
    planned([*words.split(), "dp=8"], tmp_path)
    plan = Plan.read(tmp_path / "plan.json")
    source = Source(None, "my.models:make", {"width": 64, "name": "small"})
    recipe = tmp_path / "plan.toml"
    recipe.write_text(recipe_text(plan, parse_layout("dp=8", "none"), source))
    model = resolve(str(recipe)).model
    assert (model.factory, model.arguments) == ("my.models:make", {"width": 64, "name": "small"})


@pytest.mark.parametrize(
    ("words", "layout", "expected"),
    [
        (GPT, "dp=8 zero=1", "has no zero"),
        (f"{GPT} --gated", "dp=8", "of GPT-2's shape"),
        (GPT.replace("--ffn 3072", "--ffn 2048"), "dp=8", "four times as wide"),
    ],
)
def test_what_the_trainer_lacks_is_not_emitted(
    words: str, layout: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "plan.toml"
    given = f"{words} --batch 64 --micro-batch 2 --recompute none {HOW} {NODE}".split()
    assert main(["plan", *given, "--emit", str(recipe), "--layout", layout]) == 2
    assert expected in capsys.readouterr().err
    assert not recipe.exists()


ONE = f"{GPT} --batch 8 --micro-batch 8 --recompute none {HOW} --gpu h200-141gb --gpus 1 --layout"


def measured_run(folder: Path, step_s: float, peak_bytes: int) -> Run:
    """A Run of that training on one H200."""
    run = merged([make_rank(make_table([{"forward": 10}] * 3))])
    assert run.step_s is not None
    run = replace(
        run,
        world_size=1,
        machine={"process": {"device": "NVIDIA H200", "device_memory_bytes": None}},
        step_s=replace(run.step_s, mean=step_s),
        samples_per_s=8 / step_s,
        memory=Memory(peak_bytes, peak_bytes, None),
        flops=Flops(None, None, None, None),
    )
    place = folder / run.id
    place.mkdir()
    run.write(place)
    return run


def test_a_prediction_is_checked_against_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planned([*ONE.split(), "dp=1"], tmp_path)
    step_s = plan["step_s"]["value"]
    run = measured_run(tmp_path, 1.1 * step_s, 10 * 2**30)
    path = tmp_path / "check.json"
    words = [*ONE.split(), "dp=1", "--check", run.id, "--runs-dir", str(tmp_path)]
    assert main(["plan", *words, "--json", str(path)]) == 0
    rows = {row["name"]: row for row in json.loads(path.read_text())["checks"]}
    assert rows["step s"]["predicted"] == pytest.approx(step_s)
    assert rows["step s"]["measured"] == pytest.approx(1.1 * step_s)
    assert rows["peak bytes"]["measured"] == 10 * 2**30
    assert "inside" in capsys.readouterr().out


def test_a_run_calibrates_the_plan_and_the_plan_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = planned([*ONE.split(), "dp=1"], tmp_path)
    run = measured_run(tmp_path, 1.4 * plain["step_s"]["value"], 10 * 2**30)
    by_run = ["--run", run.id, "--runs-dir", str(tmp_path)]
    plan = planned([*ONE.split(), "dp=1", *by_run], tmp_path)
    assert plan["step_s"]["value"] == pytest.approx(1.4 * plain["step_s"]["value"])
    assert plan["calibrated_by"] == run.id
    said = " ".join(capsys.readouterr().out.split())
    assert f"calibrated by Run {run.id}" in said
    assert f"Run {run.id}: its step waits for the host, which takes 1.5" in said
    assert "times as long as planned; of the GPU it says nothing" in said

    def width(one: dict[str, Any]) -> float:
        return float(one["step_s"]["high"] / one["step_s"]["low"])

    assert width(plan) < width(plain)
    larger = ONE.replace("--gpus 1", "--gpus 8 --gpus-per-node 8").replace(
        "--batch 8", "--batch 64"
    )
    uncalibrated = planned([*larger.split(), "dp=8"], tmp_path)
    calibrated = planned([*larger.split(), "dp=8", *by_run], tmp_path)
    # Its GPUs decide in part, whose pace the Run of a host that is late does not tell.
    ratio = calibrated["step_s"]["value"] / uncalibrated["step_s"]["value"]
    assert 1.2 < ratio < 1.45


def test_a_run_on_another_gpu_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = measured_run(tmp_path, 1.0, 2**30)
    words = ONE.replace("h200-141gb", "a100-80gb").split()
    assert main(["plan", *words, "dp=1", "--run", run.id, "--runs-dir", str(tmp_path)]) == 2
    assert "was measured on NVIDIA H200; --gpu is a100-80gb" in capsys.readouterr().err


def test_gpus_are_listed_with_their_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--list-gpus"]) == 0
    listed = capsys.readouterr().out
    assert "h200-141gb" in listed
    assert "NVIDIA A100 SXM 80 GB" in listed
