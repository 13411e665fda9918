"""`hotlap plan --cluster`: the GPUs of a profile, its unit, and the line that submits there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hotlap.cli import main
from hotlap.cli.plan_cluster import network_gb_per_s
from hotlap.records.cluster import NodeType

GPT = "--layers 12 --hidden 768 --heads 12 --ffn 3072 --vocab 50304 --seq 1024 --batch 64"
HOW = "--precision bf16 --optimizer adamw --micro-batch 2 --recompute none --tokens 1B"


def planned(words: str, layout: str, folder: Path) -> dict[str, Any]:
    path = folder / "plan.json"
    words = f"{GPT} {HOW} {words} --json {path} --layout"
    assert main(["plan", *words.split(), layout]) == 0
    plan: dict[str, Any] = json.loads(path.read_text())
    return plan


def test_a_profile_gives_what_the_options_would(tmp_path: Path) -> None:
    by_profile = planned("--cluster jean-zay --gpu h100-80gb --gpus 8", "dp=8", tmp_path)
    given = "--gpu h100-80gb --gpus 8 --gpus-per-node 4 --interconnect 200"
    by_options = planned(given, "dp=8", tmp_path)
    assert by_profile["step_s"] == by_options["step_s"]
    assert by_profile["memory_limit_bytes"] == by_options["memory_limit_bytes"]
    assert by_profile["cluster"]["profile"] == "jean-zay"


def test_the_site_counts_in_its_own_unit(tmp_path: Path) -> None:
    plan = planned("--cluster lumi --gpus 8", "dp=8", tmp_path)
    assert plan["charge"]["value"] == pytest.approx(plan["gpu_hours"]["value"] / 2)
    assert plan["charge_unit"] == "GPU hours (of whole MI250X)"


def test_whole_nodes_are_counted_where_jobs_have_them_whole(tmp_path: Path) -> None:
    words = "--cluster perlmutter --gpu a100-80gb --gpus 2"
    plan = planned(words, "dp=2", tmp_path)
    nodes = plan["gpu_hours"]["value"] / 2
    assert plan["charge"]["value"] == pytest.approx(nodes)
    assert plan["charge_unit"] == "node hours"


def test_a_chip_that_stands_for_another_has_its_memory(tmp_path: Path) -> None:
    plan = planned("--cluster leonardo --gpu a100-80gb --gpus 4", "dp=4", tmp_path)
    assert plan["cluster"]["memory_bytes"] == 64 * 2**30


def test_the_emitted_line_submits_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "plan.toml"
    words = f"--cluster leonardo --gpu a100-80gb --gpus 8 --emit {recipe}"
    planned(words, "dp=8", tmp_path)
    line = capsys.readouterr().out.splitlines()[-1].split()
    assert line[:4] == ["hotlap", "submit", "--cluster", "leonardo"]
    # The very line is one that `hotlap submit` takes.
    assert main(["submit", "--dry-run", *line[2:]]) == 0
    assert f"hotlap train {recipe}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--cluster nowhere --gpus 4", "there is no cluster 'nowhere'"),
        ("--cluster jean-zay --gpus 4", "--gpu is not given; jean-zay has v100-32gb"),
        ("--cluster jean-zay --gpu mi300x --gpus 4", "--gpu is 'mi300x'; jean-zay has"),
        ("--cluster leonardo --gpus 4", "'a100-64gb', of which no figures are known"),
        (
            "--cluster jean-zay --gpu v100-32gb --gpus 8",
            "'Omni-Path' of its network, which is no rate",
        ),
        ("--cluster lumi --gpus 8 --gpus-per-node 9", "--gpus-per-node is 9; a node of lumi has 8"),
        ("--cluster lumi --gpus 12", "multiple of --gpus-per-node, 8"),
        ("--cluster lumi", "--gpus is not given"),
    ],
)
def test_what_a_profile_does_not_say_is_asked_for(
    words: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *f"{GPT} {HOW} {words}".split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("InfiniBand NDR400, 50 GB/s a GPU", 200.0),
        ("InfiniBand, 800 Gb/s a node", 100.0),
        ("4 x Slingshot-11", 100.0),
        ("2 x dual InfiniBand HDR100", 50.0),
        ("InfiniBand HDR", None),
        (None, None),
    ],
)
def test_words_about_a_network_are_read_or_left(text: str | None, rate: float | None) -> None:
    assert network_gb_per_s(NodeType("a100-80gb", 4, 64, 16, network=text)) == rate
