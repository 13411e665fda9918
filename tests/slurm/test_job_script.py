"""The script of a job: golden files, and nobody's words become commands."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hostile import HOSTILE_NAMES, HOSTILE_WORDS
from slurm_cluster import Cluster, wait_for

from hotlap.errors import UsageError
from hotlap.records.job import JobRequest, Requeue, Resources, Surroundings
from hotlap.slurm.script import script
from hotlap.slurm.send import send

HOOKS = "/python/hotlap/chronometer/inject"
GOLDEN = Path(__file__).parent / "golden"
ONE = Resources(
    nodes=1, tasks_per_node=1, gpus_per_node=1, cpus_per_task=10, hours=1.5, billed_gpus=1
)
TWO_NODES = Resources(
    nodes=2,
    tasks_per_node=4,
    gpus_per_node=4,
    cpus_per_task=24,
    hours=20,
    gres="gpu:h100",
    memory_gb=468,
    partition="gpu_p6",
    constraint="h100",
    account="abc@h100",
    qos="qos_gpu_h100-t3",
    billed_gpus=8,
)
PLAIN = JobRequest("train", ("python", "train.py", "--lr", "0.1"), "/jobs/1", "/work", ONE)
REQUESTS = {
    "one_gpu": PLAIN,
    "two_nodes": dataclasses.replace(
        PLAIN,
        resources=TWO_NODES,
        surroundings=Surroundings(
            modules=("arch/h100", "pytorch-gpu/2.6"),
            conda="my env",
            hint="nomultithread",
            master_suffix="i",
            environment={"NCCL_DEBUG": "WARN", "NOTE": "it's $HOME"},
        ),
        array="0-9%2",
        after="afterok:12",
        mail="me@example.org",
        directives=("--exclusive", "--reservation=my course"),
    ),
    "torchrun": dataclasses.replace(
        PLAIN,
        command=("torchrun", "train.py"),
        launcher="node",
        resources=dataclasses.replace(TWO_NODES, tasks_per_node=1, cpus_per_task=96),
        surroundings=Surroundings(venv="/project/my venv"),
    ),
    "container": dataclasses.replace(
        PLAIN,
        surroundings=Surroundings(
            container="/images/torch.sif", container_program="singularity", binds=("/data",)
        ),
    ),
    "requeue": dataclasses.replace(PLAIN, resources=TWO_NODES, requeue=Requeue(180, 20, HOOKS)),
    "requeue_torchrun": dataclasses.replace(
        PLAIN,
        command=("torchrun", "train.py"),
        launcher="node",
        surroundings=Surroundings(container="/images/torch.sif"),
        requeue=Requeue(180, 20, HOOKS),
    ),
    "tune": dataclasses.replace(
        PLAIN, launcher="once", before=("python", "-m", "hotlap", "tune", "--")
    ),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_gives_its_golden_file(name: str) -> None:
    assert script(REQUESTS[name]) == (GOLDEN / f"{name}.sh").read_text()


@pytest.mark.parametrize("name", REQUESTS)
def test_bash_can_read_the_whole_script(name: str) -> None:
    done = subprocess.run(
        ["bash", "-n"], input=script(REQUESTS[name]), text=True, capture_output=True, timeout=30
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_word_with_any_sign_of_a_shell_is_still_one_word(tmp_path: Path) -> None:
    """The array of the command alone, by the bash that is here."""
    text = script(dataclasses.replace(PLAIN, command=("python", *HOSTILE_WORDS)))
    (line,) = [line for line in text.split("\n") if line.startswith("command=")]
    show = f"{line}\nprintf '%s\\0' \"${{command[@]}}\""
    done = subprocess.run(
        ["bash"],
        input=show.encode("utf-8", "surrogateescape"),
        capture_output=True,
        cwd=tmp_path,
        timeout=30,
    )
    words = done.stdout.decode("utf-8", "surrogateescape").split("\0")[1:-1]
    assert words == list(HOSTILE_WORDS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"name": "a\nb"}, "--job-name is 'a\\nb'; Slurm takes one line"),
        ({"name": "  "}, "a job needs a name"),
        ({"name": " a"}, "Slurm cuts off blanks"),
        ({"name": "a|b"}, "a bar (|)"),
        ({"name": "x" * 201}, "201 characters"),
        ({"name": "\udcff"}, "these bytes are none"),
        ({"command": ("python", "a\0b")}, "no program can be given a zero byte"),
        ({"cwd": "/a\0b"}, "zero byte"),
        ({"folder": "/a\\b"}, "has a backslash"),
        ({"folder": "/a\nb"}, "Slurm takes one line"),
        ({"directives": ("exclusive",)}, "one of sbatch's is expected"),
        ({"directives": ("--time=1",)}, "--time is written by hotlap itself"),
        ({"directives": ("--x=1\n#SBATCH --y",)}, "one line"),
        ({"directives": ("--x;id",)}, "one of sbatch's is expected"),
        ({"surroundings": Surroundings(environment={"A;id": "1"})}, "a variable's name"),
    ],
)
def test_what_slurm_or_bash_cannot_carry_is_one_sentence(
    changes: dict[str, object], part: str
) -> None:
    with pytest.raises(UsageError) as error:
        script(dataclasses.replace(PLAIN, **changes))  # type: ignore[arg-type]
    assert part in str(error.value)
    assert "\n" not in str(error.value)


SHOW = (
    "import json, os, sys\n"
    "kept = {k: v for k, v in os.environ.items() if k.startswith('HOSTILE_')}\n"
    "print(json.dumps([sys.argv[1:], os.getcwd(), kept]))\n"
)


@pytest.mark.timeout(170)
def test_hostile_words_names_and_paths_arrive_as_they_are_and_nothing_of_them_runs(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All words in one job; each name a job that is held, so that none has to run."""
    assert len(HOSTILE_WORDS) + len(HOSTILE_NAMES) >= 200
    for name, value in cluster.environment().items():
        monkeypatch.setenv(name, value)
    cwd = tmp_path / 'it\'s $(touch ran) `touch ran`; touch ran & "x" %j %% é\n#SBATCH --nodes=9'
    cwd.mkdir()
    (cwd / "show me; exit 1.py").write_text(SHOW)
    values = {f"HOSTILE_{n}": word for n, word in enumerate(HOSTILE_WORDS)}
    logs = tmp_path / "jobs of 100% $(id) 'me' \"you\""
    resources = dataclasses.replace(ONE, hours=0.1, account="abc@v100")
    request = JobRequest(
        name="a b; touch ran $(touch ran)",
        command=(sys.executable, "show me; exit 1.py", *HOSTILE_WORDS),
        folder=str(logs / "words"),
        cwd=str(cwd),
        resources=resources,
        surroundings=Surroundings(environment=values),
    )
    job = send(request, "mini")
    held = [
        send(
            dataclasses.replace(
                request, name=name, folder=str(logs / str(n)), directives=("--hold",)
            ),
            "mini",
        )
        for n, name in enumerate(HOSTILE_NAMES)
    ]
    out, err = logs / "words" / f"{job.id}.out", logs / "words" / f"{job.id}.err"
    wait_for(lambda: out.exists() and out.read_text().endswith("\n"), "the job", 60)
    words, folder, found = json.loads(out.read_text())
    assert words == list(HOSTILE_WORDS), err.read_text()
    assert folder == str(cwd)
    assert found == values
    asked = cluster.run(["squeue", "--noheader", "--format=%i|%j"]).stdout.splitlines()
    names = dict(line.split("|", 1) for line in asked)
    assert {one.id: names[one.id] for one in held} == {one.id: one.request.name for one in held}
    cluster.run(["scancel", *(one.id for one in held)])
    assert not list(tmp_path.rglob("ran"))
    assert not Path("ran").exists()
