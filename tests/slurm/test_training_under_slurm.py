"""A training that plain `srun` starts on two nodes: it trains as one process, and is one Run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import Cluster, wait_for

from hotlap.data.tokens import prepare_text

TESTS = Path(__file__).parents[1]
TRAIN = (sys.executable, "-W", "ignore", "-m", "hotlap", "train", str(TESTS / "trainer/tiny.toml"))
TWO_NODES = ("-N2", "--ntasks-per-node=2", "--job-name=training")
QUICK = {"OMP_NUM_THREADS": "1", "HOTLAP_SKIP_FLOPS": "1"}
LOSS_BOUND = 1e-5

pytestmark = pytest.mark.timeout(170)


def losses(folder: Path) -> dict[int, float]:
    """The loss of each step, as the training told them."""
    lines = (folder / "training" / "log.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines if line.endswith("}")]
    return {one["step"]: one["loss"] for one in entries if one["part"] == "train"}


def runs(folder: Path) -> list[dict[str, Any]]:
    """What was recorded, oldest first."""
    found = [json.loads(file.read_text()) for file in folder.glob(".hotlap/*/run.json")]
    return sorted(found, key=lambda run: run["id"])


def test_four_ranks_on_two_nodes_train_as_one_process_and_are_one_run(
    cluster: Cluster, tmp_path: Path
) -> None:
    alone, many = tmp_path / "alone", tmp_path / "many"
    for folder in (alone, many):
        prepare_text(TESTS.parent / "LICENSE", folder / "tokens")
    cluster.srun(*TWO_NODES, f"--chdir={many}", *TRAIN, "batch=2", env=QUICK)
    environment = {**os.environ, **QUICK}
    subprocess.run([*TRAIN, "batch=8"], cwd=alone, env=environment, check=True, timeout=90)
    found, expected = losses(many), losses(alone)
    assert len(expected) == 20
    assert found.keys() == expected.keys()
    assert max(abs(found[step] - one) / one for step, one in expected.items()) <= LOSS_BOUND
    (run,) = runs(many)
    assert (run["status"], run["exit_code"], run["world_size"]) == ("ok", 0, 4)
    ranks = [(rank["rank"], rank["host"]) for rank in run["ranks"]]
    assert ranks == [(0, "v1"), (1, "v1"), (2, "v2"), (3, "v2")]
    assert run["loss"] == pytest.approx(list(expected.values()), rel=LOSS_BOUND)


def test_a_signal_of_scancel_makes_it_leave_and_the_next_start_goes_on(
    cluster: Cluster, tmp_path: Path
) -> None:
    prepare_text(TESTS.parent / "LICENSE", tmp_path / "tokens")
    stood_at = 0
    for signal in ("TERM", "USR1"):
        words = ["srun", *TWO_NODES, f"--chdir={tmp_path}", *TRAIN, "batch=2", "steps=100000"]
        process = cluster.popen(words, QUICK)
        n_before = len(losses_so_far(tmp_path))
        wait_for(lambda n=n_before: len(losses_so_far(tmp_path)) > n + 1, "a step", 60)
        cluster.run(["scancel", "--name=training", f"--signal={signal}"])
        _, said = process.communicate(timeout=60)
        assert process.returncode == 75, said
        assert (f"step {stood_at}," in said) == (stood_at > 0)
        (left_at,) = re.findall(r"asked to leave: the training stands at step (\d+)", said)
        assert int(left_at) > stood_at
        stood_at = int(left_at)
    assert [(run["status"], run["exit_code"], len(run["ranks"])) for run in runs(tmp_path)] == [
        ("killed", 75, 4)
    ] * 2


def losses_so_far(folder: Path) -> dict[int, float]:
    """The losses so far, of a training that may not have begun."""
    return losses(folder) if (folder / "training" / "log.jsonl").exists() else {}
