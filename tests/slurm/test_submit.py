"""`hotlap submit` on a real Slurm: ranks and devices, arrays, dependencies, refusals, estimates."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from slurm_cluster import Cluster, wait_for
from submitting import ACCOUNTS, HOTLAP, Submitted, hotlap, submit, submit_all

from hotlap.cli import main
from hotlap.data.tokens import prepare_text
from hotlap.records.job import JobRequest, Resources
from hotlap.slurm.send import send

HERE = Path(__file__).parent
TESTS = HERE.parent
SHOW = str(HERE / "show_task.py")
RANK = str(HERE / "slurm_rank.py")

pytestmark = pytest.mark.timeout(170)


def test_two_nodes_with_eight_tasks_have_the_right_ranks_and_devices(
    cluster: Cluster, tmp_path: Path
) -> None:
    job = submit(cluster, tmp_path, "a100", "--gpus", "16", "--hours", "0.1", SHOW, "a b", "$(id)")
    assert job.wait() == "COMPLETED", job.text("err")
    found = job.lines()
    places = [(int(one["RANK"]), int(one["LOCAL_RANK"]), one["SLURMD_NODENAME"]) for one in found]
    assert places == [(n, n % 8, f"a{n // 8 + 1}") for n in range(16)]
    same = [
        (one["WORLD_SIZE"], one["LOCAL_WORLD_SIZE"], one["SLURM_CPUS_PER_TASK"]) for one in found
    ]
    assert set(same) == {("16", "8", "8")}
    assert {one["CUDA_VISIBLE_DEVICES"] for one in found} == {"0,1,2,3,4,5,6,7"}
    assert {(one["MASTER_ADDR"], int(one["MASTER_PORT"])) for one in found} == {
        ("a1", 15_000 + int(job.id))
    }
    assert all(one["argv"] == ["a b", "$(id)"] for one in found)
    assert found[0]["HOTLAP_RUNS_DIR"] == str(tmp_path / ".hotlap")


def test_what_an_enclosing_job_left_does_not_reach_the_new_one(
    cluster: Cluster, tmp_path: Path
) -> None:
    left = {
        "SLURM_JOB_ID": "4242",
        "SLURM_NTASKS": "99",
        "SLURM_STEP_ID": "3",
        "SLURM_PROCID": "7",
        "SLURM_MEM_PER_GPU": "1",
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SBATCH_PARTITION": "gpu_p5",
        "SBATCH_QOS": "no-such-qos",
        "RANK": "5",
        "WORLD_SIZE": "6",
        "MASTER_ADDR": "elsewhere",
        "FROM_OUTSIDE": "kept",
    }
    job = submit(cluster, tmp_path, "v100", "--gpus", "2", "--hours", "0.1", SHOW, env=left)
    assert job.wait() == "COMPLETED", job.text("err")
    found = job.lines()
    assert [(one["RANK"], one["WORLD_SIZE"], one["SLURM_NTASKS"]) for one in found] == [
        ("0", "2", "2"),
        ("1", "2", "2"),
    ]
    assert {one["SLURM_JOB_PARTITION"] for one in found} == {"gpu_p13"}
    assert "elsewhere" not in {one["MASTER_ADDR"] for one in found}
    assert {one["FROM_OUTSIDE"] for one in found} == {"kept"}
    assert not any("0x1" in (one["SLURM_CPU_BIND"] or "") for one in found)


@pytest.fixture(scope="module")
def torch_jobs(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Submitted]:
    """Side by side: most of their time is the import of torch."""
    two_nodes = ("--gpus", "4", "--gpus-per-node", "2", "--hours", "0.1")

    def send(name: str, gpu: str, *words: str) -> Submitted:
        return submit(cluster, folders[name], gpu, *words)

    names = ("plain", "torchrun", "names that do not resolve", "training")
    folders = {name: tmp_path_factory.mktemp(name) for name in names}
    prepare_text(TESTS.parent / "LICENSE", folders["training"] / "tokens")
    profile = folders["names that do not resolve"] / "mini.toml"
    hotlap(cluster, folders["plain"], "clusters", "discover", "-o", str(profile))
    text = profile.read_text().replace("[cluster]", '[cluster]\nmaster_suffix = ".nowhere"')
    profile.write_text(text)
    torchrun = (sys.executable, "-m", "torch.distributed.run", RANK)
    elsewhere = (*two_nodes, "--cluster", str(profile), RANK)
    train = (*HOTLAP, "train", str(TESTS / "trainer/tiny.toml"), "batch=2")
    return {
        "plain": send("plain", "v100", *two_nodes, RANK),
        "torchrun": send("torchrun", "v100", *two_nodes, *torchrun),
        "names that do not resolve": send("names that do not resolve", "h100", *elsewhere),
        "training": send("training", "a100", *two_nodes, *train),
    }


@pytest.mark.parametrize("way", ["plain", "torchrun", "names that do not resolve"])
def test_four_ranks_on_two_nodes_meet(torch_jobs: dict[str, Submitted], way: str) -> None:
    job = torch_jobs[way]
    assert job.wait() == "COMPLETED", job.text("err")
    found = [json.loads(line) for line in job.text().splitlines() if line.startswith("{")]
    ranks = sorted((one["rank"], one["local_rank"], one["node"][1:]) for one in found)
    assert ranks == [(0, 0, "1"), (1, 1, "1"), (2, 0, "2"), (3, 1, "2")]
    assert {one["total"] for one in found} == {10.0}
    addresses = {one["master_addr"] for one in found}
    assert len(addresses) == 1
    assert (addresses == {"v1"}) == (way != "names that do not resolve")


def test_a_training_of_the_reference_trainer_runs_over_two_nodes(
    torch_jobs: dict[str, Submitted],
) -> None:
    job = torch_jobs["training"]
    assert job.wait() == "COMPLETED", job.text("err")
    (run,) = runs(job.folder.parents[2])
    assert (run["status"], run["world_size"]) == ("ok", 4)
    assert [one["host"] for one in run["ranks"]] == ["a1", "a1", "a2", "a2"]
    assert len(run["loss"]) == 20
    assert run["machine"]["slurm_job"] == job.id


def runs(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob(".hotlap/*/run.json"))]


def test_tasks_of_an_array_end_with_their_own_codes_and_have_their_own_logs(
    cluster: Cluster, tmp_path: Path
) -> None:
    count = (
        "import os, sys; n = os.environ['SLURM_ARRAY_TASK_ID']; print('task', n); sys.exit(int(n))"
    )
    words = ["--array", "0-2", "--hours", "0.1", "--", sys.executable, "-c", count]
    job = submit(cluster, tmp_path, "v100", *words)
    ask = ["sacct", "-n", "-X", "-P", "-j", job.id, "-o", "JobID,ExitCode"]
    expected = {f"{job.id}_{n}|{n}:0" for n in range(3)}
    wait_for(lambda: set(cluster.run(ask).stdout.split()) == expected, "the array", 60)
    assert [job.text(task=n) for n in range(3)] == [f"task {n}\n" for n in range(3)]
    one = hotlap(cluster, tmp_path, "logs", f"{job.id}_2", "--out")
    assert one.stdout == "task 2\n"
    found = hotlap(cluster, tmp_path, "logs", "python*", "--search", "task", "--out")
    assert [line.partition(": ")[2] for line in found.stdout.splitlines()] == [
        f"task {n}" for n in range(3)
    ]
    assert hotlap(cluster, tmp_path, "logs", job.id, "--search", "nowhere").returncode == 1


def test_a_job_waits_for_another_and_never_starts_after_a_failed_one(
    cluster: Cluster, tmp_path: Path
) -> None:
    first = submit(cluster, tmp_path, "v100", "--hours", "0.1", "--", "sleep", "2")
    second = submit(cluster, tmp_path, "v100", "--hours", "0.1", "--after", first.id, "true")
    failed = submit(cluster, tmp_path, "v100", "--hours", "0.1", "false")
    never = submit(cluster, tmp_path, "v100", "--hours", "0.1", "--after", failed.id, "true")
    assert second.wait() == "COMPLETED"
    assert second.shown()["StartTime"] >= first.shown()["EndTime"]
    assert failed.wait() == "FAILED"
    wait_for(lambda: never.shown()["Reason"] == "DependencyNeverSatisfied", "the reason", 60)
    told = hotlap(cluster, tmp_path, "queue")
    assert "it will never start, cancel it" in told.stdout
    cancelled = hotlap(cluster, tmp_path, "cancel", never.id)
    assert cancelled.stdout == f"cancelled: {never.id}\n"
    assert never.wait() == "CANCELLED"
    assert hotlap(cluster, tmp_path, "cancel", never.id).stdout == f"{never.id} is over already\n"


def test_commands_and_numbers_of_gpus_give_their_product_each_with_its_own_script(
    cluster: Cluster, tmp_path: Path
) -> None:
    (tmp_path / "commands").write_text(f"# two\n{SHOW} 'first one'\n\n{SHOW} second\n")
    words = ["--commands", "commands", "--gpus", "1,2", "--hours", "0.1"]
    jobs = submit_all(cluster, tmp_path, "h100", words)
    assert [job.wait() for job in jobs] == ["COMPLETED"] * 4
    found = [(len(job.lines()), job.lines()[0]["argv"]) for job in jobs]
    assert found == [(1, ["first one"]), (2, ["first one"]), (1, ["second"]), (2, ["second"])]
    assert len({job.folder for job in jobs}) == 4
    assert len({(job.folder / "job.sh").read_text() for job in jobs}) == 4


def test_a_dry_run_prints_the_file_that_is_sent(cluster: Cluster, tmp_path: Path) -> None:
    words = ["--gpu", "a100", "--account", "abc@a100", "--gpus", "8", "--hours", "1", SHOW]
    dry = hotlap(cluster, tmp_path, "submit", "--dry-run", *words)
    assert dry.returncode == 0
    assert not (tmp_path / ".hotlap").exists()
    job = submit(cluster, tmp_path, "a100", "--gpus", "8", "--hours", "1", SHOW)
    sent = (job.folder / "job.sh").read_text()
    (folder,) = {
        line.partition("hotlap:")[2] for line in dry.stdout.splitlines() if "comment" in line
    }
    assert dry.stdout.replace(folder, job.folder.name) == sent
    assert job.wait() == "COMPLETED"


@pytest.mark.parametrize(
    ("gpus", "hours", "nearest"),
    [
        ("24", "1", "16 GPUs for 1 h (gpu_p5 with qos_gpu-t3)"),
        ("8", "30", "8 GPUs for 20 h (gpu_p5 with qos_gpu-t3)"),
    ],
    ids=["nodes", "hours"],
)
def test_more_than_the_cluster_has_is_refused_with_the_nearest_in_ones_own_qos(
    cluster: Cluster, tmp_path: Path, gpus: str, hours: str, nearest: str
) -> None:
    words = ("--gpu", "a100", "--account", ACCOUNTS["a100"], "--gpus", gpus, "--hours", hours)
    done = hotlap(cluster, tmp_path, "submit", *words, "true")
    assert done.returncode == 2
    assert nearest in done.stderr
    assert "Slurm refused" not in done.stderr


def test_what_slurm_refuses_is_shown_as_it_is_with_a_hint(cluster: Cluster, tmp_path: Path) -> None:
    profile = tmp_path / "mini.toml"
    hotlap(cluster, tmp_path, "clusters", "discover", "-o", str(profile))
    # A profile that knows no limits, so that Slurm is the one to refuse.
    text = profile.read_text().partition("[qos")[0]
    profile.write_text("\n".join(line for line in text.splitlines() if "max_hours" not in line))
    base = ["submit", "--cluster", str(profile), "--gpu", "v100", "--account", "abc@v100"]
    too_long = hotlap(cluster, tmp_path, *base, "--qos", "qos_gpu-dev", "--hours", "10", "true")
    assert too_long.returncode == 2
    assert "QOSMaxWallDurationPerJobLimit" in too_long.stderr
    assert "shorten --hours or change --qos" in too_long.stderr
    nowhere = hotlap(cluster, tmp_path, *base, "--hours", "1", "--constraint", "b200", "true")
    assert "Invalid feature specification" in nowhere.stderr
    assert "no node has that --constraint" in nowhere.stderr
    assert list((tmp_path / ".hotlap" / "jobs").iterdir()) == []
    known = hotlap(cluster, tmp_path, "submit", "--gpu", "v100", "--account", "abc@v100")
    assert "--hours is missing" in hotlap(cluster, tmp_path, "submit", "true").stderr
    assert known.returncode == 2


def test_on_a_full_cluster_the_start_of_each_alternative_is_told(
    cluster: Cluster, tmp_path: Path
) -> None:
    full = submit(cluster, tmp_path, "h100", "--gpus", "8", "--hours", "2", "--", "sleep", "100")
    wait_for(lambda: full.state() == "RUNNING", "the full cluster", 30)
    path = tmp_path / "when.json"
    words = ["submit", "--when", "--gpu", "h100", "--account", "abc@h100", "--json", str(path)]
    told = hotlap(cluster, tmp_path, *words, "--gpus", "8", "--hours", "1", SHOW)
    assert told.returncode == 0, told.stderr
    (starts,) = json.loads(path.read_text())
    ends = full.shown()["EndTime"]
    cancelled = hotlap(cluster, tmp_path, "cancel", full.id)
    assert cancelled.returncode == 0
    places = {
        (one["request"]["resources"]["qos"], one["request"]["resources"]["hours"]) for one in starts
    }
    assert {("qos_gpu-t3", 1.0), ("qos_gpu-dev", 1.0), ("qos_gpu-t3", 0.5)} <= places
    assert all(one["at"] >= ends for one in starts)
    assert "8 GPU hours" in told.stdout
    assert ends.replace("T", " ") in told.stdout
    assert full.wait() == "CANCELLED"
    assert len(list((tmp_path / ".hotlap" / "jobs").iterdir())) == 1


def test_a_log_is_followed_to_the_end_of_its_job(cluster: Cluster, tmp_path: Path) -> None:
    steps = "import time; [(print('step', n, flush=True), time.sleep(0.5)) for n in range(6)]"
    job = submit(cluster, tmp_path, "v100", "--hours", "0.1", "--", sys.executable, "-c", steps)
    followed = hotlap(cluster, tmp_path, "logs", "last", "-f", "--out")
    assert followed.stdout == "".join(f"step {n}\n" for n in range(6))
    assert job.wait() == "COMPLETED"


def test_the_logs_of_a_job_that_hotlap_did_not_send_are_found(
    cluster: Cluster, tmp_path: Path
) -> None:
    own = ["sbatch", "--parsable", "--wait", f"--output={tmp_path}/own.log", "--wrap=echo foreign"]
    number = cluster.run(own).stdout.strip()
    found = hotlap(cluster, tmp_path, "logs", number)
    assert found.stdout == "foreign\n"


def test_waiting_jobs_have_their_reason_and_priority_in_words(
    cluster: Cluster, tmp_path: Path
) -> None:
    words = ["--gpus", "16", "--hours", "1", "--name", "queue test", "--", "sleep", "60"]
    jobs = [submit(cluster, tmp_path, "a100", *words) for _ in range(2)]
    first, second = jobs
    wait_for(lambda: first.state() == "RUNNING", "the first", 30)
    wait_for(lambda: second.shown()["Reason"] in ("Resources", "Priority"), "the reason", 30)
    # The scheduler estimates when the second may start once it has looked at the whole queue.
    wait_for(lambda: second.shown()["StartTime"] != "Unknown", "an estimate", 60)
    result = tmp_path / "queue.json"
    told = hotlap(cluster, tmp_path, "queue", "--json", str(result))
    found = {job["id"]: job for job in json.loads(result.read_text())}
    assert (found[first.id]["state"], found[first.id]["gpus"]) == ("RUNNING", 16)
    assert found[second.id]["state"] == "PENDING"
    assert found[second.id]["factors"]["QoS"] > 0
    assert found[second.id]["start"] >= first.shown()["EndTime"]
    assert f"priority {found[second.id]['priority']}: " in told.stdout
    assert "waits for nodes to be free" in told.stdout or "others are before it" in told.stdout
    assert "for its QoS" in told.stdout
    gone = hotlap(cluster, tmp_path, "cancel", "queue test")
    assert gone.stdout == f"cancelled: {first.id}, {second.id}\n"
    assert [job.wait() for job in jobs] == ["CANCELLED"] * 2


def test_a_cluster_without_accounts_is_good_enough(cluster: Cluster, tmp_path: Path) -> None:
    """As some sites have it: neither sacct nor sacctmgr."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sbatch", "squeue", "scontrol", "scancel", "sinfo", "srun"):
        (programs / name).symlink_to(shutil.which(name) or name)
    for name in ("bash", "sleep", "head", "getent", "cut", "hostname"):
        (programs / name).symlink_to(shutil.which(name) or name)
    poor = {"PATH": str(programs)}
    job = submit(cluster, tmp_path, "v100", "--hours", "0.1", SHOW, env=poor)
    assert hotlap(cluster, tmp_path, "queue", env=poor).returncode == 0
    assert job.wait() == "COMPLETED", job.text("err")
    followed = hotlap(cluster, tmp_path, "logs", job.id, "-f", "--out", env=poor)
    assert json.loads(followed.stdout)["argv"] == []
    told = hotlap(cluster, tmp_path, "efficiency", job.id, env=poor)
    assert told.stdout.startswith(f"job {job.id} (show_task): done\n")
    assert "note: this cluster keeps no accounts: cores" in told.stdout
    lines = (cluster.state / "slurm.conf").read_text().splitlines()
    config = tmp_path / "slurm.conf"
    config.write_text("\n".join(one for one in lines if not one.startswith("AccountingStorage")))
    disabled = {"SLURM_CONF": str(config)}
    told = hotlap(cluster, tmp_path, "efficiency", job.id, env=disabled)
    assert "accounting storage is disabled: cores, memory" in told.stdout
    assert hotlap(cluster, tmp_path, "queue", env=disabled).returncode == 0
    profile = hotlap(cluster, tmp_path, "clusters", "discover", env=poor)
    assert "[partitions.gpu_p6]" in profile.stdout
    assert "[qos" not in profile.stdout


def test_where_there_is_no_slurm_every_command_says_so_and_a_dry_run_works(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.chdir(tmp_path)
    ask = [
        "submit",
        "--cluster",
        "jean-zay",
        "--gpu",
        "h100",
        "--gpus",
        "8",
        "--hours",
        "5",
        "true",
    ]
    others = (["queue"], ["logs", "3"], ["cancel", "3"], ["efficiency", "3"], ["cancel", "x*"])
    for words in (ask, [*ask[:-1], "--when", "true"], *others, ["clusters", "check", "lumi"]):
        assert main(words) == 2
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.startswith("hotlap: ")
        assert "no Slurm here" in said
    assert main(["submit", "--hours", "1", "true"]) == 2
    assert "name one with --cluster" in capsys.readouterr().err
    assert main([ask[0], "--dry-run", *ask[1:]]) == 0
    shown = capsys.readouterr()
    assert "#SBATCH --constraint=h100" in shown.out
    assert "40 GPU hours" in shown.err


@pytest.mark.timeout(280)
def test_five_hundred_submissions_lose_and_double_no_job(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)
    wanted = Resources(
        nodes=1,
        tasks_per_node=1,
        gpus_per_node=1,
        cpus_per_task=1,
        hours=0.1,
        account="abc@v100",
    )
    names = [f"many-{n}" for n in range(500)]
    base = JobRequest("", ("true",), "", str(tmp_path), wanted, directives=("--hold",))

    def send_one(name: str) -> str:
        request = dataclasses.replace(base, name=name, folder=str(tmp_path / "jobs" / name))
        return send(request, "mini").id

    with ThreadPoolExecutor(2) as pool:
        ids = list(pool.map(send_one, names))
    rows = cluster.run(["squeue", "--noheader", "--format=%i|%j"]).stdout.splitlines()
    queued = dict(row.split("|") for row in rows if "|many-" in row)
    cluster.run(["scancel", *ids])
    assert len(set(ids)) == 500
    assert queued == dict(zip(ids, names, strict=True))


def test_a_second_submission_never_writes_over_the_script_of_the_first(
    cluster: Cluster, tmp_path: Path
) -> None:
    jobs = [
        submit(cluster, tmp_path, "v100", "--hours", "0.1", "--name", "same", "echo", word)
        for word in ("one", "two")
    ]
    assert [job.wait() for job in jobs] == ["COMPLETED"] * 2
    assert [job.text() for job in jobs] == ["one\n", "two\n"]
