"""Jobs that come back after a time limit or a preemption, on a real Slurm, all side by side."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from slurm_cluster import Cluster, wait_for
from submitting import Submitted, hotlap, submit

from hotlap.data.tokens import prepare_text

HERE = Path(__file__).parent
LICENSE = HERE.parents[1] / "LICENSE"
TINY = str(HERE.parent / "trainer/tiny.toml")
N_STEPS = 90
TRAIN = (str(HERE / "slow_first.py"), TINY, "batch=2", f"steps={N_STEPS}", "data.n_workers=1")
COUNT = str(HERE / "count_up.py")
PLAIN = (str(HERE / "plain_training.py"), "state", "200")
ONE_MINUTE = ("--hours", "0.016", "--requeue", "--requeue-before", "0.3")
LONG = ("--hours", "0.3", "--requeue")
TWO_RANKS = ("--gpus", "2", "--gpus-per-node", "1")
ENOUGH_S = 250

pytestmark = pytest.mark.timeout(290)

Jobs = dict[str, Submitted]


@pytest.fixture(scope="module")
def jobs(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """All of them at once: most of the time is Slurm's, that looks at limits twice a minute."""

    def folder(name: str) -> Path:
        path = tmp_path_factory.mktemp(name)
        if "training" in name:
            prepare_text(LICENSE, path / "tokens")
        return path

    def send(name: str, gpu: str, *words: str, env: dict[str, str] | None = None) -> Submitted:
        return submit(cluster, folder(name), gpu, "--name", name, *words, env=env)

    leaves = ("--", sys.executable, "-c", "import sys; sys.exit(75)")
    found: Jobs = {}
    found["limit"] = send("limited training", "v100", *TWO_RANKS, *ONE_MINUTE, *TRAIN)
    # It has to be under way before it is told to leave: the others' starts take the cores.
    wait_for(lambda: bool(losses(found["limit"])), "a first step", 90)
    free = ("--qos", "qos_gpu-free", *TWO_RANKS, *LONG)
    found["preempted"] = send("preempted training", "h100", *free, *TRAIN)
    found["workers"] = send(
        "workers", "h100", "--qos", "qos_gpu-free", "--array", "0-1", *LONG, *PLAIN
    )
    found["first alone"] = send("first alone", "a100", *LONG, *PLAIN)
    found["plain"] = send("plain", "v100", *ONE_MINUTE, COUNT, "state", "90")
    torchrun = ("--", sys.executable, "-m", "torch.distributed.run", COUNT, "state", "90")
    found["torchrun"] = send("torchrun", "v100", *ONE_MINUTE, *torchrun)
    array = ("--array", "0-1", *ONE_MINUTE, COUNT, "state", "90")
    found["array"] = send("array", "a100", *array)
    # One rank of two: srun ends the other, which must not look as if it had been told to leave.
    one_fails = "import os, sys, time; time.sleep(int(os.environ['RANK']) * 30); sys.exit(1)"
    fails = ("--gpus", "2", "--", sys.executable, "-c", one_fails)
    found["failing"] = send("failing", "a100", *LONG, *fails)
    found["restless"] = send("restless", "a100", *LONG, "--attempts", "2", *leaves)
    never_slow = {"NEVER_SLOW": "1"}
    found["whole"] = send(
        "whole training", "a100", *TWO_RANKS, "--hours", "0.3", *TRAIN, env=never_slow
    )
    return found


def losses(job: Submitted) -> dict[int, float]:
    """The loss of each step, as the training told them."""
    log = job.folder.parents[2] / "training" / "log.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    entries = [json.loads(line) for line in lines if line.endswith("}")]
    return {one["step"]: one["loss"] for one in entries if one["part"] == "train"}


@pytest.fixture(scope="module")
def given_way(cluster: Cluster, jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """The jobs, after a higher QoS wanted the nodes of some."""
    urgent = ("--qos", "qos_gpu-dev", "--gpus", "8", "--hours", "0.1", "true")
    wait_for(lambda: len(losses(jobs["preempted"])) >= 3, "some steps", 90)
    for task in range(2):
        wait_for(lambda t=task: "step 3" in jobs["workers"].text(task=t), "some steps", 90)
    job = submit(cluster, tmp_path_factory.mktemp("urgent"), "h100", *urgent)
    assert job.wait() == "COMPLETED"
    return jobs


@pytest.fixture(scope="module")
def plain_loss(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the plain training ends with, if nobody interrupts it."""
    words = [sys.executable, *PLAIN]
    folder = tmp_path_factory.mktemp("plain")
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("task", range(2))
def test_a_plain_training_with_workers_gives_way_and_ends_as_if_it_never_had(
    cluster: Cluster, given_way: Jobs, plain_loss: str, task: int
) -> None:
    job = given_way["workers"]
    wait_for(is_over(cluster, job.id), "the array", ENOUGH_S)
    said = job.text("err", task)
    assert "Traceback" not in said
    assert said.count("hotlap: attempt") == 2
    check_plain(job.text(task=task), plain_loss)


def check_plain(printed: str, loss: str) -> None:
    lines = [line for line in printed.splitlines() if not line.startswith("step")]
    first, left, again, last = lines
    assert first == "from 0"
    match = re.fullmatch(r"left at (\d+) by \[15\]", left)
    assert match is not None, lines
    assert again == f"from {match[1]}"
    assert last == loss


def test_a_signal_to_the_first_process_of_a_task_alone_reaches_the_command(
    jobs: Jobs, plain_loss: str
) -> None:
    """As Slurm sends it where it tracks processes by control groups."""
    job = jobs["first alone"]
    wait_for(lambda: "step 3" in job.text(), "some steps", 90)
    (file,) = job.folder.glob("attempts/*/*.pid")
    status = Path(f"/proc/{file.read_text().strip()}/stat").read_text()
    os.kill(int(status.rpartition(")")[2].split()[1]), signal.SIGTERM)
    assert job.wait(ENOUGH_S) == "COMPLETED", job.text("err")
    check_plain(job.text(), plain_loss)


def test_a_training_gives_way_to_a_higher_qos_and_ends_as_if_it_never_had(given_way: Jobs) -> None:
    jobs, job = given_way, given_way["preempted"]
    assert job.wait(ENOUGH_S) == "COMPLETED", job.text("err")
    assert job.shown()["Restarts"] == "1"
    said = job.text("err")
    assert said.count("hotlap: attempt") == 2
    assert "asked to leave: the training stands at step" in said
    assert_same_training(job, jobs["whole"])


def test_a_training_goes_on_after_its_time_limit_and_ends_as_if_it_had_none(jobs: Jobs) -> None:
    job = jobs["limit"]
    assert job.wait(ENOUGH_S) == "COMPLETED", job.text("err")
    said = job.text("err")
    assert "hotlap: the time limit is near: the command is asked to leave" in said
    assert said.count("hotlap: attempt") == int(job.shown()["Restarts"]) + 1 >= 2
    (left_at,) = re.findall(r"asked to leave: the training stands at step (\d+)", said)
    assert 0 < int(left_at) < N_STEPS
    assert_same_training(job, jobs["whole"])


def assert_same_training(job: Submitted, whole: Submitted) -> None:
    assert whole.wait() == "COMPLETED", whole.text("err")
    assert "hotlap: attempt" not in whole.text("err")
    expected = losses(whole)
    assert len(expected) == N_STEPS
    assert losses(job) == expected


@pytest.mark.parametrize("way", ["plain", "torchrun"])
def test_a_plain_command_is_told_without_its_workers_and_goes_on(jobs: Jobs, way: str) -> None:
    job = jobs[way]
    assert job.wait(ENOUGH_S) == "COMPLETED", job.text("err")
    check_counted(job.text())


def check_counted(printed: str) -> None:
    first, told, again, done = printed.splitlines()
    assert (first, done) == ("from 0", "done 90")
    match = re.fullmatch(r"told at (\d+), worker lives", told)
    assert match is not None, printed
    assert again == f"from {match[1]}"


def test_each_task_of_an_array_comes_back_by_itself(jobs: Jobs, cluster: Cluster) -> None:
    job = jobs["array"]
    over = is_over(cluster, job.id)
    wait_for(over, "the array", ENOUGH_S)
    for task in range(2):
        lines = job.text(task=task)
        assert lines.startswith("from 0\ntold at ")
        assert lines.rstrip().endswith("done 90")
        assert "worker lives" in lines
        assert job.text("err", task).count("hotlap: attempt") >= 2


def is_over(cluster: Cluster, number: str) -> Callable[[], bool]:
    return lambda: not cluster.run(["squeue", "-h", "-j", number]).stdout.strip()


def test_a_command_that_fails_by_itself_is_not_queued_again(jobs: Jobs) -> None:
    job = jobs["failing"]
    assert job.wait() == "FAILED"
    assert job.shown()["Restarts"] == "0"
    assert "failed by itself with 1: not queued again" in job.text("err")


def test_a_command_that_always_wants_to_leave_has_only_so_many_attempts(jobs: Jobs) -> None:
    job = jobs["restless"]
    wait_for(lambda: "that was the last attempt" in job.text("err"), "the last attempt", 90)
    assert job.wait() == "FAILED"
    assert job.shown()["Restarts"] == "1"
    assert job.shown()["ExitCode"] == "75:0"


def test_a_cancelled_job_stays_cancelled(cluster: Cluster, tmp_path: Path) -> None:
    polite = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75)); time.sleep(99)"
    words = [*LONG, "--name", "polite", "--", sys.executable, "-c", polite]
    job = submit(cluster, tmp_path, "a100", *words)
    wait_for(lambda: job.state() == "RUNNING" and job.text("err") != "", "the job", 30)
    assert hotlap(cluster, tmp_path, "cancel", "polite").returncode == 0
    assert job.wait() == "CANCELLED"
    assert job.shown()["Restarts"] == "0"
