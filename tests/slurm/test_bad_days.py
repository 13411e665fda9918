"""What can go wrong around Slurm: lost answers, damaged files, a controller that is away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from slurm_cluster import Cluster, wait_for
from submitting import HOTLAP, QUICK, hotlap, submit

from hotlap.cli import main
from hotlap.errors import UsageError
from hotlap.records.job import JobRequest, Resources
from hotlap.slurm import follow, programs
from hotlap.slurm.send import send

pytestmark = pytest.mark.timeout(170)

WANTED = Resources(
    nodes=1, tasks_per_node=1, gpus_per_node=1, cpus_per_task=1, hours=0.1, account="abc@v100"
)
SLOW = '/usr/bin/sbatch "$@"; sleep 60'
TIMED_OUT = (
    '/usr/bin/sbatch "$@" > /dev/null; '
    'echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv" >&2; exit 1'
)
NEVER_SENT = 'echo "sbatch: error: Socket timed out on send/recv operation" >&2; exit 1'


def program(folder: Path, name: str, body: str) -> str:
    """A PATH on which a program stands before Slurm's own."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{body}\n")
    (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.fixture
def request_here(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobRequest:
    """A job that is held, sent by this very process."""
    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)
    folder = tmp_path / "jobs" / tmp_path.name
    return JobRequest(
        tmp_path.name, ("true",), str(folder), str(tmp_path), WANTED, directives=("--hold",)
    )


def queued(cluster: Cluster, name: str) -> list[str]:
    rows = cluster.run(["squeue", "--noheader", "--format=%i|%j"]).stdout.splitlines()
    return [row.partition("|")[0] for row in rows if row.endswith(f"|{name}")]


@pytest.mark.parametrize("body", [SLOW, TIMED_OUT], ids=["no answer", "socket timed out"])
def test_a_job_whose_number_was_lost_is_found_again_and_not_sent_twice(
    cluster: Cluster,
    request_here: JobRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: str,
) -> None:
    monkeypatch.setenv("PATH", program(tmp_path / "bin", "sbatch", body))
    monkeypatch.setattr(programs, "TIMEOUT_S", 3)
    job = send(request_here, "mini")
    assert queued(cluster, request_here.name) == [job.id]
    assert (Path(request_here.folder) / "job.json").exists()
    cluster.run(["scancel", job.id])


def test_a_job_that_never_arrived_leaves_nothing_behind(
    cluster: Cluster, request_here: JobRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", program(tmp_path / "bin", "sbatch", NEVER_SENT))
    with pytest.raises(UsageError, match="Socket timed out"):
        send(request_here, "mini")
    assert queued(cluster, request_here.name) == []
    assert not Path(request_here.folder).exists()


def test_where_nobody_can_tell_whether_it_arrived_the_script_is_kept_and_it_is_said(
    request_here: JobRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", program(tmp_path / "bin", "sbatch", NEVER_SENT))
    program(tmp_path / "bin", "squeue", "exit 1")
    with pytest.raises(UsageError, match="is not known: look with `hotlap queue` before"):
        send(request_here, "mini")
    assert (Path(request_here.folder) / "job.sh").exists()


def test_interrupted_while_slurm_takes_the_job_it_is_told_how_to_take_it_back(
    cluster: Cluster, tmp_path: Path
) -> None:
    path = program(tmp_path / "bin", "sbatch", SLOW)
    words = ["submit", "--name", "cut off", "--hours", "0.1", "--gpu", "v100"]
    words += ["--account", "abc@v100", "--directive=--hold", "true"]
    env = cluster.environment({**QUICK, "PATH": path})
    pipe = subprocess.PIPE
    process = subprocess.Popen([*HOTLAP, *words], cwd=tmp_path, env=env, stderr=pipe, text=True)
    wait_for(lambda: bool(queued(cluster, "cut off")), "the job", 30)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    (number,) = queued(cluster, "cut off")
    assert process.returncode == 2
    assert said.endswith(f"Slurm has the job: `hotlap cancel {number}` takes it back\n")
    assert "Traceback" not in said
    assert hotlap(cluster, tmp_path, "cancel", number).stdout == f"cancelled: {number}\n"


def test_killed_while_it_sends_the_job_is_still_found_by_its_number(
    cluster: Cluster, tmp_path: Path
) -> None:
    path = program(tmp_path / "bin", "sbatch", SLOW)
    words = ["submit", "--name", "killed", "--hours", "0.1", "--gpu", "v100"]
    words += ["--account", "abc@v100", "echo", "I ran"]
    env = cluster.environment({**QUICK, "PATH": path})
    process = subprocess.Popen([*HOTLAP, *words], cwd=tmp_path, env=env)
    folder = tmp_path / ".hotlap" / "jobs"
    wait_for(lambda: bool(list(folder.glob("*/*.out"))), "the job", 60)
    process.kill()
    process.wait(timeout=30)
    (out,) = folder.glob("*/*.out")
    wait_for(lambda: out.read_text() == "I ran\n", "its output", 30)
    found = hotlap(cluster, tmp_path, "logs", out.stem, "--out")
    assert (found.returncode, found.stdout) == (0, "I ran\n")


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"id": 3}', '{"schema": 99}', "\0\0", "abc"])
def test_damaged_records_of_jobs_are_passed_over(
    cluster: Cluster, tmp_path: Path, damage: str
) -> None:
    broken = tmp_path / ".hotlap" / "jobs" / "broken"
    broken.mkdir(parents=True)
    (broken / "job.json").write_text(damage)
    found = hotlap(cluster, tmp_path, "logs", "last")
    assert found.returncode == 2
    assert found.stderr.startswith("hotlap: no job 'last' was sent from here")
    assert found.stderr.count("\n") == 1


def test_a_record_with_a_number_that_is_none_is_passed_over(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = submit(cluster, tmp_path, "v100", "--hours", "0.1", "--name", "whole", "true")
    copy = job.folder.with_name("copy")
    copy.mkdir()
    record = json.loads((job.folder / "job.json").read_text())
    (copy / "job.json").write_text(json.dumps({**record, "id": "twelve"}))
    assert job.wait() == "COMPLETED"
    assert hotlap(cluster, tmp_path, "logs", "whole", "--out").returncode == 0


def test_a_folder_that_cannot_be_written_is_one_sentence(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / ".hotlap").write_text("a file, where a folder is needed")
    words = ["submit", "--hours", "0.1", "--gpu", "v100", "--account", "abc@v100", "true"]
    refused = hotlap(cluster, tmp_path, *words)
    assert refused.returncode == 2
    assert "cannot be written" in refused.stderr.splitlines()[-1]
    assert "Traceback" not in refused.stderr
    assert queued(cluster, "true") == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["logs", "999999"], "no job '999999' was sent from here, and Slurm knows none"),
        (["logs", "no-such-name"], "no job 'no-such-name' was sent from here"),
        (["logs", "1; id"], "no job '1; id' was sent from here"),
        (["logs", ""], "no job '' was sent from here"),
        (["logs", "1", "-f", "--search", "x"], "do not go together"),
        (["cancel", "999999"], "Slurm knows no job 999999"),
        (["cancel", "no-such-*"], "no job of yours named 'no-such-*' waits or runs"),
        (["cancel", "--", "-u"], "no job of yours named '-u' waits or runs"),
        (["cancel"], "the following arguments are required: JOB"),
        (["efficiency", "999999"], "neither Slurm nor its accounts know a job 999999"),
        (["efficiency", "x"], "no job 'x' was sent from here"),
        (["queue", "--live", "0"], "a whole number above zero is expected"),
        (["clusters", "show"], "no cluster was named"),
        (["clusters", "show", "jeanzay"], "did you mean jean-zay?"),
        (["clusters", "check", "nowhere.toml"], "nowhere.toml cannot be read"),
        (["clusters", "melt"], "invalid choice: 'melt'"),
        (["submit", "--hours", "1", "--gpus", "0", "true"], "a whole number above zero"),
        (["submit", "--hours", "-1", "true"], "a number above zero is expected"),
        (["submit", "--hours", "1", "--gpu", "b200", "true"], "has no GPU 'b200'"),
        (["submit", "--hours", "1", "--after", "x; id", "true"], "--after is 'x; id'"),
        (["submit", "--hours", "1", "--array", "0-9;id", "true"], "--array is '0-9;id'"),
        (["submit", "--hours", "1", "--array", "9-0", "true"], "--array is '9-0'"),
        (["submit", "--hours", "1", "--env", "NAME", "true"], "NAME=VALUE is expected"),
        (["submit", "--hours", "1", "--mail", "a\nb", "true"], "Slurm takes one line"),
        (["submit", "--hours", "1", "--commands", "nowhere"], "nowhere cannot be read"),
        (["submit", "--hours", "1", "nowhere.py"], "the script nowhere.py does not exist"),
        (["submit", "--hours", "1"], "neither was given"),
        (["submit", "--hours", "1", "--when", "--dry-run", "true"], "not allowed with"),
    ],
)
def test_nonsense_is_one_sentence(
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    sentence: str,
) -> None:
    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("hotlap: ")
    assert sentence in said
    assert said.count("\n") == 1
    assert len(said) < 400


@pytest.fixture
def away(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration of a controller that does not answer, nor waits long for it."""
    text = (cluster.state / "slurm.conf").read_text()
    lines = [line for line in text.splitlines() if not line.startswith(("SlurmctldPort", "Mess"))]
    path = tmp_path / "slurm.conf"
    path.write_text("\n".join([*lines, "SlurmctldPort=1", "MessageTimeout=2"]))
    for name, value in cluster.environment({"SLURM_CONF": str(path)}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return path


@pytest.mark.parametrize(
    "words", [["queue"], ["cancel", "1"], ["logs", "1"], ["submit", "--hours", "1", "true"]]
)
def test_a_controller_that_is_away_is_not_taken_for_one_that_knows_no_such_job(
    away: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "Unable to contact slurm controller" in said
    assert said.count("\n") == 1


def test_a_log_is_followed_while_the_controller_is_away(away: Path) -> None:
    assert not follow.is_over("1")


def test_a_queue_that_is_looked_at_live_ends_when_it_is_empty(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = submit(cluster, tmp_path, "h100", "--hours", "0.1", "--name", "live", "sleep", "4")
    wait_for(lambda: job.state() == "RUNNING", "the job", 30)
    words = [*HOTLAP, "queue", "--live", "1"]
    env = cluster.environment(QUICK)
    process = subprocess.Popen(words, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True)
    assert job.wait() == "COMPLETED"
    began = time.monotonic()
    while queued_at_all(cluster) and time.monotonic() < began + 60:
        time.sleep(0.5)
    shown, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert shown.count("live ") >= 2  # it was looked at more than once
    assert shown.endswith("no job of yours waits or runs\n")


def queued_at_all(cluster: Cluster) -> bool:
    return bool(cluster.run(["squeue", "--noheader"]).stdout.strip())


def test_programs_without_a_cluster_are_one_sentence() -> None:
    """As Slurm 22.05 says it on a machine that has its programs and no slurm.conf."""
    said = (
        "squeue: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n"
        "squeue: error: fetch_config: DNS SRV lookup failed\n"
        "squeue: error: _establish_config_source: failed to fetch config\n"
        "squeue: fatal: Could not establish a configuration source\n"
    )
    told = programs.complaint(subprocess.CompletedProcess(["squeue"], 1, "", said))
    assert told.startswith("Slurm's programs are here, but no cluster: squeue found no slurm.conf")
