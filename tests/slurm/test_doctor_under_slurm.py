"""`hotlap doctor` that plain `srun` starts on two nodes: ranks are measured, one report comes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from slurm_cluster import Cluster


@pytest.mark.timeout(170)
def test_ranks_on_two_nodes_are_measured_and_the_job_is_told(
    cluster: Cluster, tmp_path: Path
) -> None:
    result = tmp_path / "doctor.json"
    doctor = (sys.executable, "-m", "hotlap", "doctor", "--quick", "--json", str(result))
    env = {"OMP_NUM_THREADS": "1", "HOTLAP_CACHE_DIR": str(tmp_path / "cache")}
    printed = cluster.srun("-N2", "--ntasks-per-node=1", f"--chdir={tmp_path}", *doctor, env=env)
    assert printed.count("hotlap doctor on") == 1
    machine = json.loads(result.read_text())["machine"]
    scheduler = machine["system"]["scheduler"]
    assert (scheduler["name"], scheduler["n_nodes"]) == ("Slurm", 2)
    exchanges = machine["ceilings"]["exchanges"]
    assert {one["world_size"] for one in exchanges} == {2}
    assert all(one["median_s"] > 0 for one in exchanges)
    assert {"send_recv", "all_reduce"} <= {one["operation"] for one in exchanges}
