"""What of a submission Slurm itself then says: mail, further directives, shares of a node."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from slurm_cluster import Cluster, wait_for
from submitting import hotlap, submit

RANK = str(Path(__file__).parent / "slurm_rank.py")

pytestmark = pytest.mark.timeout(170)


def test_mail_directives_and_the_shape_arrive(cluster: Cluster, tmp_path: Path) -> None:
    words = ["--gpus", "4", "--gpus-per-node", "2", "--hours", "1.5", "--mail", "me@example.org"]
    words += ["--directive=--hold", "--directive=--nice=7", "--directive=--exclude=v1"]
    job = submit(cluster, tmp_path, "a100", *words, "--name", "told", "true")
    said = job.shown()
    cluster.run(["scancel", job.id])
    assert (said["MailUser"], said["Priority"], said["Nice"]) == ("me@example.org", "0", "7")
    assert {"BEGIN", "END", "FAIL", "REQUEUE"} <= set(said["MailType"].split(","))
    assert (said["ExcNodeList"], said["NumNodes"]) == ("v1", "2-2")
    assert (said["TimeLimit"], said["Account"], said["Partition"]) == (
        *("01:30:00", "abc@a100", "gpu_p5"),
    )
    assert said["TRES"].startswith("cpu=32,")
    assert "gres/gpu=4" in said["TRES"]


def test_two_jobs_that_share_a_node_meet_at_ports_of_their_own(
    cluster: Cluster, tmp_path: Path
) -> None:
    hold = tmp_path / "hold"
    words = ["--gpus", "2", "--hours", "0.1", "--directive=--nodelist=v2"]
    first = submit(cluster, tmp_path, "v100", *words, RANK, str(hold))
    held = [Path(f"{hold}.rank-{n}") for n in range(2)]
    wait_for(lambda: all(path.exists() for path in held), "the first job", 60)
    second = submit(cluster, tmp_path, "v100", *words, RANK)
    assert second.wait() == "COMPLETED", second.text("err")
    told = hotlap(cluster, tmp_path, "queue", "--json", str(tmp_path / "queue.json"))
    hold.touch()
    assert first.wait() == "COMPLETED", first.text("err")
    found = [json.loads(line) for job in (first, second) for line in job.text().splitlines()]
    assert [one["total"] for one in found] == [3.0] * 4
    assert {one["node"] for one in found} == {"v2"}
    assert len({one["master_port"] for one in found}) == 2
    (one,) = [j for j in json.loads((tmp_path / "queue.json").read_text()) if j["id"] == first.id]
    assert (one["state"], one["gpus"]) == ("RUNNING", 2)
    assert one["elapsed_h"] > 0
    assert f"{2 * one['elapsed_h']:.2f}" in told.stdout


def test_logs_of_an_array_are_found_by_number_name_and_pattern_and_followed(
    cluster: Cluster, tmp_path: Path
) -> None:
    code = (
        "import os, sys, time; n = os.environ['SLURM_ARRAY_TASK_ID']; time.sleep(1); "
        "print('out', n); print('err', n, file=sys.stderr)"
    )
    words = ["--array", "3,5", "--hours", "0.1", "--name", "sweep of two"]
    job = submit(cluster, tmp_path, "h100", *words, "--", sys.executable, "-c", code)
    out = [job.folder / f"{job.id}_{task}.out" for task in (3, 5)]
    wait_for(lambda: all(path.exists() for path in out), "both tasks", 60)

    def show(*asked: str) -> str:
        done = hotlap(cluster, tmp_path, "logs", *asked)
        assert done.returncode == 0, done.stderr
        return done.stdout

    followed = show(job.id, "-f", "--out")
    assert [line for line in followed.splitlines() if line.startswith("out")] in (
        ["out 3", "out 5"],
        ["out 5", "out 3"],
    )
    assert show(f"{job.id}_5", "--out") == "out 5\n"
    for word in (job.id, "sweep of two", "sweep*", "last"):
        assert show(word, "--search", "err 3").endswith("_3 sweep of two err:3: err 3\n"), word
    assert f"hotlap: job {job.id}_5 on h" in show(f"{job.id}_5", "--err")
    whole = hotlap(cluster, tmp_path, "efficiency", job.id)
    assert f"{job.id} is an array of jobs: name one of its tasks, as {job.id}_" in whole.stderr
    assert (
        f"job {job.id}_3 (sweep of two)"
        in hotlap(cluster, tmp_path, "efficiency", f"{job.id}_3").stdout
    )
    both = show("sweep*")
    assert [line for line in both.splitlines() if line.startswith("==>")] == [
        f"==> {job.id}_{task} sweep of two {kind}" for task in (3, 5) for kind in ("out", "err")
    ]
