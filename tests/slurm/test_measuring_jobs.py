"""The chronometer and the tuner as jobs: what they found comes back to where it was asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import Cluster
from submitting import Submitted, hotlap, submit

SCRIPTS = Path(__file__).parents[1] / "scripts"
TRAINING = """
import os, sys
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
if "WORLD_SIZE" in os.environ:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.Adam(model.parameters(), lr=float(sys.argv[1]))
data = torch.utils.data.TensorDataset(torch.randn(512, 64), torch.randint(0, 4, (512,)))
if os.environ.get("RANK", "0") == "0":
    with open(os.environ["SEEN"], "a") as seen:
        print(os.environ["SLURM_JOB_ID"], os.getcwd(), os.environ.get("WORLD_SIZE"), file=seen)
open("checkpoint.pt", "w").write("of a trial")
for epoch in range(20):
    for x, y in torch.utils.data.DataLoader(data, batch_size=16):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
TUNE = "--only fused_optimizer --steps 18 --json 'the ladder.json'"
FIND = ("--tune", "--options", TUNE)
LONG_S = 250

pytestmark = pytest.mark.timeout(290)

Jobs = dict[str, Submitted]


@pytest.fixture(scope="module")
def jobs(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """Side by side, each in a folder of its own."""

    def send(name: str, gpu: str, *words: str) -> Submitted:
        folder = tmp_path_factory.mktemp(name)
        (folder / "train.py").write_text(TRAINING)
        (folder / "checkpoint.pt").write_text("the user's own")
        env = {"SEEN": str(folder / "seen.txt")}
        return submit(cluster, folder, gpu, "--hours", "0.2", *words, env=env)

    two_nodes = ("--gpus", "4", "--gpus-per-node", "2")
    ddp = str(SCRIPTS / "ddp.py")
    return {
        "time": send("time", "v100", "--time", *two_nodes, "--runs-dir", "my runs", ddp),
        "tune": send("tune", "a100", *FIND, "train.py", "0.01"),
        "tune on two nodes": send(
            "two", "h100", *FIND, "--gpus", "2", "--gpus-per-node", "1", "train.py", "0.01"
        ),
    }


def home(job: Submitted) -> Path:
    """The folder that it was submitted from."""
    return job.folder.parents[2]


def test_the_run_of_a_training_on_two_nodes_comes_back_to_the_folder_that_was_named(
    jobs: Jobs,
) -> None:
    job = jobs["time"]
    assert job.wait(LONG_S) == "COMPLETED", job.text("err")
    (path,) = home(job).glob("my runs/*/run.json")
    run = json.loads(path.read_text())
    assert (run["status"], run["world_size"]) == ("ok", 4)
    assert [rank["host"] for rank in run["ranks"]] == ["v1", "v1", "v2", "v2"]
    assert run["machine"]["slurm_job"] == job.id
    assert f"Run {run['id']}" in job.text("err")
    assert not (home(job) / ".hotlap").exists()


@pytest.mark.parametrize("name", ["tune", "tune on two nodes"])
def test_the_settings_and_the_ladder_of_a_tuner_come_back(jobs: Jobs, name: str) -> None:
    job = jobs[name]
    assert job.wait(LONG_S) == "COMPLETED", job.text("err")
    ladder = json.loads((home(job) / "the ladder.json").read_text())
    assert ladder["baseline"]["samples_per_s"] > 0
    # Twice where it came near to being kept the first time.
    tried = {rung["lever"] for rung in ladder["rungs"] if rung["state"] == "ok"}
    assert tried == {"fused_optimizer"}
    assert "[levers]" in (home(job) / "hotlap.toml").read_text()
    assert "  baseline " in job.text("err")
    assert (home(job) / "checkpoint.pt").read_text() == "the user's own"
    applied = (sys.executable, "-m", "hotlap", "run", "--steps", "5", "train.py", "0.01")
    assert name != "tune" or run_here(home(job), applied) == 0


def run_here(folder: Path, words: tuple[str, ...]) -> int:
    env = {**os.environ, "SEEN": os.devnull, "SLURM_JOB_ID": "none"}
    return subprocess.run(words, cwd=folder, env=env, capture_output=True, timeout=90).returncode


def test_trials_are_in_the_job_and_their_folder_is_one_that_all_nodes_see(jobs: Jobs) -> None:
    alone, many = jobs["tune"], jobs["tune on two nodes"]
    assert [alone.wait(LONG_S), many.wait(LONG_S)] == ["COMPLETED"] * 2
    seen = {name: seen_by(job) for name, job in (("alone", alone), ("many", many))}
    assert {one[0] for one in seen["alone"]} == {alone.id}
    assert {(one[0], one[2]) for one in seen["many"]} == {(many.id, "2")}
    assert all(Path(one[1]).is_relative_to(many.folder) for one in seen["many"])
    assert not any(Path(one[1]).is_relative_to(home(alone)) for one in seen["alone"])
    assert not list(many.folder.glob("hotlap-*"))


def seen_by(job: Submitted) -> list[list[str]]:
    lines = (home(job) / "seen.txt").read_text().splitlines()
    assert len(lines) >= 4  # the baselines, and the lever
    return [line.split() for line in lines]


def dry(cluster: Cluster, folder: Path, *words: str) -> tuple[str, str]:
    """What a dry run prints and complains about."""
    (folder / "train.py").touch()
    base = ("submit", "--dry-run", "--gpu", "a100", "--account", "abc@a100")
    done = hotlap(cluster, folder, *base, *words)
    return done.stdout, done.stderr


def test_the_tuner_has_less_time_than_its_job_and_several_do_not_share_their_settings(
    cluster: Cluster, tmp_path: Path
) -> None:
    short, _ = dry(cluster, tmp_path, "--tune", "--hours", "0.1", "train.py")
    assert "--budget 4.8 --" in short
    long, _ = dry(cluster, tmp_path, "--tune", "--hours", "5", "train.py")
    assert "--budget 15 --" in long
    own, _ = dry(cluster, tmp_path, "--tune", "--options=--budget=60", "--hours", "5", "train.py")
    assert own.count("--budget") == 1
    many, _ = dry(cluster, tmp_path, "--tune", "--hours", "1", "--gpus", "1,2", "train.py")
    outputs = {word(line, "--output") for line in many.splitlines() if "--output " in line}
    assert len(outputs) == 2


def word(line: str, option: str) -> Any:
    words = line.split()
    return words[words.index(option) + 1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--tune", "--options", "--budgt 3"], "unrecognized arguments: --budgt"),
        (["--time", "--options", "--steps none"], "'none' was found; a whole number"),
        (["--options", "--budget 3"], "neither was given"),
        (["--tune", "--options", "'"], "No closing quotation"),
        (["--tune", "--array", "0-3"], "--tune goes with one job"),
        (["--tune", "--container", "x.sif"], "--container hides it"),
        (["--time", "--requeue"], "--tune and --time run once"),
    ],
)
def test_what_is_wrong_is_said_before_the_job_has_waited(
    cluster: Cluster, tmp_path: Path, words: list[str], sentence: str
) -> None:
    printed, complaint = dry(cluster, tmp_path, *words, "--hours", "1", "train.py")
    assert printed == ""
    assert complaint.startswith("hotlap: ")
    assert sentence in complaint
    assert complaint.count("\n") == 1
