"""`hotlap.slurm` as a notebook uses it, and what a job made of what it had."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from making import make_rank, make_table, merged
from slurm_cluster import Cluster, wait_for
from submitting import Submitted, hotlap, submit

from hotlap import slurm
from hotlap.records.job import QueuedJob
from hotlap.records.run import Memory
from hotlap.slurm.efficiency import _row, summed, with_runs
from hotlap.slurm.notebook import LogView, QueueView

PLAIN = str(Path(__file__).parents[1] / "scripts" / "plain.py")

pytestmark = pytest.mark.timeout(170)


def test_jobs_are_sent_seen_and_read_from_python(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    jobs = slurm.submit(
        ["echo 'one <b>'", "echo two"],
        gpus=[1, 2],
        hours=0.1,
        gpu="h100",
        account="abc@h100",
        name="from <python>",
        directives=("--hold",),
    )
    assert [job.request.command[1] for job in jobs] == ["one <b>", "one <b>", "two", "two"]
    assert [job.request.resources.gpus for job in jobs] == [1, 2, 1, 2]
    view = slurm.queue()
    assert view is not None
    shown = view._repr_html_()
    assert all(f"<td>{job.id}</td>" in shown for job in jobs)
    assert "from &lt;python&gt;" in shown
    assert "you hold it" in repr(view)
    cluster.run(["scontrol", "release", jobs[1].id])
    cluster.run(["scancel", jobs[0].id, jobs[2].id, jobs[3].id])
    assert Submitted(cluster, jobs[1].id, Path(jobs[1].request.folder)).wait() == "COMPLETED"
    log = slurm.logs(jobs[1], which="out", search="one")
    assert log is not None
    assert log.parts == ((f"{jobs[1].id} from <python> out", "one <b>\none <b>"),)
    assert "one &lt;b&gt;" in log._repr_html_()


def test_what_a_notebook_shows_is_text_and_never_markup() -> None:
    job = QueuedJob("1", "<script>", "RUNNING", "None", "p", "q", 1, 1, 1.0, 2.0, None, 0)
    assert "<script>" not in QueueView((job,))._repr_html_()
    assert "<script>" not in LogView((("<script>", "<script>"),))._repr_html_()


def test_the_efficiency_of_a_job_comes_from_its_accounts_and_its_runs(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = submit(cluster, tmp_path, "v100", "--hours", "0.5", "--time", PLAIN)
    bare = submit(cluster, tmp_path, "v100", "--gpus", "2", "--hours", "0.1", "--", "sleep", "3")
    assert [job.wait(), bare.wait()] == ["COMPLETED"] * 2, job.text("err")
    result = tmp_path / "efficiency.json"

    def ask(number: str) -> dict[str, Any]:
        told = hotlap(cluster, tmp_path, "efficiency", number, "--json", str(result))
        assert told.returncode == 0, told.stderr
        return {"told": told.stdout, **json.loads(result.read_text())}

    wait_for(lambda: ask(bare.id)["state"] == "COMPLETED", "the accounts", 30)
    found = ask(bare.id)
    assert (found["gpus"], found["attempts"], found["runs"]) == (2, 1, [])
    assert found["gpu_hours"] == pytest.approx(2 * found["elapsed_h"])
    assert found["gpu_use"] is None
    assert ask("last")["job"] == ask("slee*")["job"] == bare.id
    measured = ask(job.id)
    (run,) = measured["runs"]
    assert (tmp_path / ".hotlap" / run / "run.json").exists()
    assert measured["data_wait"] is not None
    # The GPUs of this cluster are names: the training was on the CPU.
    assert measured["gpu_use"] == 0.0
    assert measured["wasted_gpu_hours"] == measured["gpu_hours"]
    assert "with a shorter --hours it would have started sooner" in measured["told"]
    assert "neither Slurm nor its accounts" in hotlap(cluster, tmp_path, "efficiency", "987").stderr
    assert "no job 'other' was sent" in hotlap(cluster, tmp_path, "efficiency", "other").stderr


def test_hours_and_energy_of_all_attempts_are_added_up() -> None:
    lines = [
        "7|REQUEUED|3600|02:00:00|cpu=10,gres/gpu=4,node=1|05:00:00|||train|one",
        "7.0|CANCELLED|3600||cpu=10,gres/gpu=4|05:00:00|2000000K|3600000|python",
        "7|COMPLETED|1800|02:00:00|cpu=10,gres/gpu=4,node=1|02:30:00|||train|one",
        "7.0|COMPLETED|1800||cpu=10,gres/gpu=4|02:30:00|3G|1800000|python",
    ]
    found = summed("7", [_row(line) for line in lines])
    assert (found.attempts, found.state, found.name) == (2, "COMPLETED", "train|one")
    assert (found.elapsed_h, found.gpu_hours, found.limit_h) == (1.5, 6.0, 2.0)
    assert found.core_use == pytest.approx(0.5)
    assert found.memory_gb == pytest.approx(3 * 1.073741824)
    assert found.node_energy_kwh == pytest.approx(1.5)


def test_the_use_of_gpus_is_the_share_of_the_jobs_time_in_which_they_trained() -> None:
    line = "7|COMPLETED|3600|02:00:00|cpu=10,gres/gpu=4|05:00:00|||train"
    seconds = {"data": 2_000_000_000, "forward": 3_000_000_000, "backward": 5_000_000_000}
    run = merged([make_rank(make_table([seconds] * 5))])
    assert run.step_s is not None
    assert run.phases_s is not None
    run = dataclasses.replace(run, memory=Memory(1, 1, 1))
    found = with_runs(summed("7", [_row(line)]), [run])
    n_steps = run.steps.measured + run.steps.warmup
    trained_s = n_steps * (run.step_s.mean - run.phases_s.data)
    assert found.gpu_use == pytest.approx(trained_s / 3600)
    assert found.wasted_gpu_hours == pytest.approx(4 * (1 - trained_s / 3600))
    assert found.data_wait == pytest.approx(run.phases_s.data / run.step_s.mean)
    assert found.runs == (run.id,)
