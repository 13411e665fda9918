"""Ranks under a real Slurm: each knows its place, and all of them meet and sum up."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import Cluster, wait_for

RANK = (sys.executable, str(Path(__file__).parent / "slurm_rank.py"))
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")

pytestmark = pytest.mark.timeout(170)


def ranks(printed: str) -> list[dict[str, Any]]:
    """What the ranks said, in their order."""
    lines = [line for line in printed.splitlines() if line.startswith("{")]
    return sorted((json.loads(line) for line in lines), key=lambda found: found["rank"])


def column(found: list[dict[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(rank[name] for name in names) for rank in found]


def all_met(found: list[dict[str, Any]]) -> bool:
    """Whether there are as many as they say, and each got the sum over all."""
    n = len(found)
    return all((rank["world_size"], rank["total"]) == (n, n * (n + 1) / 2) for rank in found)


def test_srun_on_one_node(cluster: Cluster) -> None:
    found = ranks(cluster.srun("-N1", "-n2", *RANK))
    assert column(found, "rank", "local_rank", "local_world_size") == [(0, 0, 2), (1, 1, 2)]
    assert column(found, "source", "n_nodes", "master_addr") == [("srun", 1, "v1")] * 2
    assert all_met(found)


def test_srun_with_uneven_tasks_on_two_nodes(cluster: Cluster) -> None:
    found = ranks(cluster.srun("-N2", "-n3", *RANK))
    places = column(found, "node", "node_rank", "local_rank", "local_world_size")
    assert places == [("v1", 0, 0, 2), ("v1", 0, 1, 2), ("v2", 1, 0, 1)]
    assert column(found, "source", "n_nodes", "master_addr") == [("srun", 2, "v1")] * 3
    assert all_met(found)


def test_a_step_on_other_nodes_than_its_jobs_first_meets_on_its_own(cluster: Cluster) -> None:
    script = f"srun --nodes=1 --ntasks=2 --relative=1 {' '.join(RANK)}"
    found = ranks(cluster.sbatch(script, "-N2", "--ntasks-per-node=2"))
    assert column(found, "node", "node_rank", "master_addr") == [("v2", 0, "v2")] * 2
    assert all_met(found)


def test_torchrun_inside_srun_has_the_ranks_of_torchrun(cluster: Cluster) -> None:
    options = "--nnodes 2 --node-rank $SLURM_NODEID --nproc-per-node 2 --master-addr v1"
    words = f"{' '.join(TORCHRUN)} {options} --master-port $((10000 + SLURM_JOB_ID)) {RANK[1]}"
    found = ranks(cluster.srun("-N2", "--ntasks-per-node=1", "bash", "-c", words))
    assert column(found, "rank", "local_rank") == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert column(found, "node_rank", "n_nodes") == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert column(found, "source") == [("torchrun in srun",)] * 4
    assert all_met(found)


def test_a_lone_process_in_a_batch_script_is_alone(cluster: Cluster) -> None:
    (found,) = ranks(cluster.sbatch(" ".join(RANK), "-N2", "-n5"))
    assert (found["source"], found["world_size"], found["total"]) == ("alone", 1, 1.0)
    assert f"job {found['job']}" in found["reason"]
    assert "srun would start 5" in found["reason"]


@pytest.mark.parametrize(
    "shell",
    [(), ("srun", "--interactive", "--preserve-env")],
    ids=["on the login node", "on the first node"],
)
def test_python_in_the_shell_of_salloc_is_alone(cluster: Cluster, shell: tuple[str, ...]) -> None:
    (found,) = ranks(cluster.salloc("-N2", "-n5", *shell, *RANK))
    assert (found["source"], found["world_size"], found["total"]) == ("alone", 1, 1.0)


def test_srun_from_the_shell_of_salloc_has_the_ranks_of_its_step(cluster: Cluster) -> None:
    found = ranks(cluster.salloc("-N2", "-n5", "srun", "-N2", "-n2", *RANK))
    assert column(found, "source", "node", "local_world_size") == [
        ("srun", "v1", 1),
        ("srun", "v2", 1),
    ]
    assert all_met(found)


def test_a_batch_script_submitted_from_a_step_is_alone(cluster: Cluster, tmp_path: Path) -> None:
    script, printed = tmp_path / "job.sh", tmp_path / "printed"
    script.write_text(f"#!/bin/bash\n{' '.join(RANK)}\n")
    submit = f"sbatch --wait --output={printed} -N1 -n1 {script}"
    cluster.srun("-N2", "-n2", "bash", "-c", f"[ $SLURM_PROCID != 0 ] || {submit}")
    (found,) = ranks(printed.read_text())
    assert (found["source"], found["world_size"], found["total"]) == ("alone", 1, 1.0)


def test_two_jobs_on_one_node_do_not_meet(cluster: Cluster, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    words = ["-w", "v1", "-N1", "-n2", *RANK]
    first = cluster.popen(["srun", *words, str(hold)])
    try:
        wait_for(lambda: all(Path(f"{hold}.rank-{n}").exists() for n in range(2)), "the first job")
        second = ranks(cluster.srun(*words))
    finally:
        hold.touch()
        printed, complaints = first.communicate(timeout=60)
    assert first.returncode == 0, complaints
    assert all_met(second)
    assert all_met(ranks(printed))
    assert second[0]["master_port"] != ranks(printed)[0]["master_port"]
