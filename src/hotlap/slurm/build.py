"""Requests of jobs from what a user wrote: one for each command with each number of GPUs."""

from __future__ import annotations

import re
import secrets
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path

from hotlap.chronometer import INJECT
from hotlap.errors import UsageError
from hotlap.records.cluster import Cluster
from hotlap.records.job import Ask, JobRequest, Launcher, Requeue, Resources, Rights, Surroundings
from hotlap.slurm import requeue as requeueing
from hotlap.slurm.resources import choose

BY_NODE = ("torchrun", "accelerate", "deepspeed")
"""Launchers that start the ranks of a node themselves."""
BY_THEMSELVES = ("srun", "mpirun", "mpiexec")
FOLDER = "jobs"
"""Below the folder of Runs."""
SETTINGS = "hotlap.toml"
TUNER_MIN = 15.0
"""What the tuner takes by itself."""
TUNER_SHARE = 0.8
"""Of a job's time: a climb that has begun a trial ends it, and shows its ladder."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a user asked `submit` for, command and number of GPUs aside."""

    ask: Ask
    """Of one job; the number of GPUs and the launcher are filled in for each."""
    cwd: Path
    runs_dir: Path
    name: str | None = None
    surroundings: Surroundings = field(default_factory=Surroundings)
    array: str | None = None
    after: str | None = None
    mail: str | None = None
    directives: tuple[str, ...] = ()
    requeue: Requeue | None = None
    measure: str | None = None
    """'time' or 'tune': the chronometer or the tuner as a job."""
    measure_options: tuple[str, ...] = ()
    """Of that command's own, as '--budget', '30'."""
    is_one_of_many: bool = False
    """Whether the same submission sends further jobs."""


def build_all(
    cluster: Cluster,
    wish: Wish,
    commands: Sequence[Sequence[str]],
    counts: Sequence[int],
    rights: Rights | None,
) -> list[list[JobRequest]]:
    """One job for each command with each number of GPUs, in every way that it can run."""
    wish = replace(wish, is_one_of_many=len(commands) * len(counts) > 1)
    return [_build(cluster, wish, command, n, rights) for command in commands for n in counts]


def _build(
    cluster: Cluster, wish: Wish, command: Sequence[str], gpus: int, rights: Rights | None
) -> list[JobRequest]:
    """The job in every way that it can run, the best first."""
    launcher = launcher_of(command)
    if wish.measure and (gpus == 1 or launcher == "node"):
        launcher = launcher if launcher == "node" else "once"
    ask = replace(wish.ask, gpus=gpus, launcher=launcher)
    folder = wish.runs_dir / FOLDER / _unique()
    return [
        _request(cluster, wish, command, launcher, resources, folder)
        for resources in choose(cluster, ask, rights)
    ]


def _request(
    cluster: Cluster,
    wish: Wish,
    command: Sequence[str],
    launcher: Launcher,
    resources: Resources,
    folder: Path,
) -> JobRequest:
    around = wish.surroundings
    kind = next((node.gpu for node in cluster.nodes.values() if node.gres == resources.gres), "")
    around = replace(
        around,
        hint=cluster.hint,
        master_suffix=cluster.master_suffix,
        container_program=cluster.container or around.container_program,
        container_gpu="--rocm" if kind.startswith("mi") else "--nv",
        environment={
            "HOTLAP_RUNS_DIR": str(wish.runs_dir),
            **cluster.environment,
            **around.environment,
        },
    )
    if around.venv is not None and not (wish.cwd / around.venv / "bin" / "activate").is_file():
        raise UsageError(f"--venv is {around.venv!r}; there is no bin/activate in it")
    request = JobRequest(
        name=wish.name or default_name(command),
        command=_resolved(command, around, wish.cwd),
        folder=str(folder),
        cwd=str(wish.cwd),
        resources=resources,
        surroundings=around,
        launcher=launcher,
        before=_before(wish, around, folder, resources.nodes),
        array=_array(wish.array),
        after=_after(wish.after),
        mail=wish.mail,
        directives=wish.directives,
        requeue=wish.requeue and replace(wish.requeue, hooks=str(INJECT)),
    )
    if request.before and request.requeue:
        raise UsageError("--requeue goes with a training; --tune and --time run once")
    requeueing.check(request)
    return request


def launcher_of(command: Sequence[str]) -> Launcher:
    """How often Slurm is to start it."""
    words = [Path(word).name for word in command[:3]]
    is_torchrun = len(words) == 3 and words[1:] == ["-m", "torch.distributed.run"]
    if words[0] in BY_NODE or is_torchrun:
        return "node"
    return "once" if words[0] in BY_THEMSELVES else "gpu"


def default_name(command: Sequence[str]) -> str:
    """The script's name, or the program's; what Slurm cannot carry is left out of it."""
    scripts = [word for word in command if word.endswith(".py")]
    stem = Path(scripts[0]).stem if scripts else Path(command[0]).name
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", stem).strip("-") or "job"


def _resolved(command: Sequence[str], around: Surroundings, cwd: Path) -> tuple[str, ...]:
    """As everywhere in hotlap: a first word ending in .py runs under Python."""
    if not command[0].endswith(".py"):
        return tuple(command)
    if around.container is None and not (cwd / command[0]).is_file():
        raise UsageError(f"the script {command[0]} does not exist in {cwd}")
    return (_python(around), *command)


def _python(around: Surroundings) -> str:
    brings_its_own = around.modules or around.conda or around.venv or around.container
    return "python" if brings_its_own else sys.executable


def _before(wish: Wish, around: Surroundings, folder: Path, n_nodes: int) -> tuple[str, ...]:
    if wish.measure is None:
        return ()
    if around.container is not None:
        raise UsageError(f"--{wish.measure} needs hotlap beside torch; --container hides it")
    words = [_python(around), "-m", "hotlap", wish.measure, "--runs-dir", str(wish.runs_dir)]
    if wish.measure == "tune":
        words += _tuner_options(wish, folder, n_nodes)
    return (*words, *wish.measure_options, "--")


def _tuner_options(wish: Wish, folder: Path, n_nodes: int) -> Iterator[str]:
    """What ends the climb before the job's limit, and keeps its settings from other jobs'."""
    if wish.array is not None:
        raise UsageError("--tune goes with one job: the tasks of an array would tune the same")
    given = [word.partition("=")[0] for word in wish.measure_options]
    if "--budget" not in given:
        yield from ("--budget", f"{min(TUNER_MIN, 60 * wish.ask.hours * TUNER_SHARE):g}")
    if "--output" not in given and wish.is_one_of_many:
        yield from ("--output", str(folder / SETTINGS))
    if "--scratch" not in given and n_nodes > 1:  # a node's own temporary folder is its own
        yield from ("--scratch", str(folder))


def _array(text: str | None) -> str | None:
    if text is None:
        return None
    is_form = re.fullmatch(r"\d+(-\d+)?(:\d+)?(,\d+(-\d+)?(:\d+)?)*(%\d+)?", text)
    spans = re.findall(r"(\d+)-(\d+)", text)
    if not is_form or any(int(first) > int(last) for first, last in spans):
        raise UsageError(f"--array is {text!r}; a form as 0-9, 1,3,5 or 0-99%10 is expected")
    return text


def _after(text: str | None) -> str | None:
    if text is None:
        return None
    if re.fullmatch(r"\d+(_\d+)?([:,]\d+(_\d+)?)*", text):
        return f"afterok:{text.replace(',', ':')}"
    one = r"(after(any|ok|notok|corr|burstbuffer)?(:\d+(_\d+)?(\+\d+)?)+|singleton)"
    if not re.fullmatch(rf"{one}([,?]{one})*", text):
        raise UsageError(
            f"--after is {text!r}; a job's number, or a form as afterany:12 is expected"
        )
    return text


def _unique() -> str:
    stamp = datetime.now(timezone.utc).strftime("%Y%m%d-%H%M%S")
    return f"{stamp}-{secrets.token_hex(4)}"


def read_commands(path: Path) -> list[tuple[str, ...]]:
    """Commands of a file, one a line as typed; empty lines and # lines aside."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--commands {path} cannot be read: {error}") from None
    found = []
    for number, line in enumerate(lines, 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise UsageError(f"--commands {path}, line {number}: {error}") from None
        if words:
            found.append(tuple(words))
    if not found:
        raise UsageError(f"--commands {path} holds no command")
    return found
