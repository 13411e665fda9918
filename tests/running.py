"""Start hotlap, or a command without it, as a user would, and bring back all that came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parent / "scripts"
TIMEOUT_S = 200


@dataclass(frozen=True, slots=True)
class Result:
    """What a command left behind."""

    run: dict[str, Any]
    """The document of `--json`; empty where there is none."""
    stdout: bytes
    stderr: bytes
    code: int
    folder: Path
    """The Run's folder, or the folder of all Runs where none was made."""
    ranks: list[dict[str, Any]]

    @property
    def truth(self) -> dict[str, Any]:
        """The JSON line that every script ends with."""
        truth: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        return truth

    def printed_losses(self, rank: int | None = None) -> list[float]:
        """The losses that the script printed, of one rank where it says whose they are."""
        prefix = f"rank {rank} loss " if rank is not None else "loss "
        lines = self.stdout.decode().splitlines()
        return [float.fromhex(line[len(prefix) :]) for line in lines if line.startswith(prefix)]

    @property
    def n_steps(self) -> int:
        """All steps, warm-up included."""
        n: int = self.run["steps"]["measured"] + self.run["steps"]["warmup"]
        return n


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """One thread, and the Python of the tests first on the PATH."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **(extra or {})}


def hotlap_words(folder: Path, words: Sequence[str], options: Sequence[str] = ()) -> list[str]:
    """The command line of `hotlap time`, its Runs and its result below `folder`."""
    kept = ["--runs-dir", str(folder / "runs"), "--json", str(folder / "run.json")]
    return [sys.executable, "-m", "hotlap", "time", *kept, *options, *words]


def run_hotlap(
    *words: str,
    folder: Path,
    cwd: Path = SCRIPTS,
    options: Sequence[str] = (),
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
) -> Result:
    """Run `hotlap time` on a command to its end."""
    process = _run(hotlap_words(folder, words, options), cwd, stdin, env)
    return collect(folder, process)


def run_alone(
    *words: str, cwd: Path = SCRIPTS, stdin: bytes = b"", env: Mapping[str, str] | None = None
) -> Result:
    """Run the same command without hotlap."""
    start = [sys.executable] if words[0].endswith(".py") else []
    process = _run([*start, *words], cwd, stdin, env)
    return Result({}, process.stdout, process.stderr, process.returncode, cwd, [])


def _run(
    argv: Sequence[str], cwd: Path, stdin: bytes, env: Mapping[str, str] | None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        argv, cwd=cwd, input=stdin, env=environment(env), capture_output=True, timeout=TIMEOUT_S
    )


def collect(folder: Path, process: subprocess.CompletedProcess[bytes]) -> Result:
    """What a finished `hotlap time` left below `folder`."""
    written = folder / "run.json"
    run = json.loads(written.read_bytes()) if written.exists() else {}
    made = folder / "runs" / run["id"] if run else folder / "runs"
    ranks = [json.loads(path.read_bytes()) for path in sorted(made.glob("rank-*.json"))]
    return Result(run, process.stdout, process.stderr, process.returncode, made, ranks)


@dataclass(frozen=True, slots=True)
class Command:
    """A command that several tests look at; it runs once a session."""

    words: tuple[str, ...]
    options: tuple[str, ...] = ("--quiet",)
    stdin: bytes = b""
    is_alone: bool = False
    """Without hotlap."""
    cwd: Path = SCRIPTS
    n: int = 1
    """The same command again is another run."""

    def run(self, folder: Path) -> Result:
        """Run it to its end."""
        if self.is_alone:
            return run_alone(*self.words, cwd=self.cwd, stdin=self.stdin)
        return run_hotlap(
            *self.words, folder=folder, cwd=self.cwd, options=self.options, stdin=self.stdin
        )


class RunCache:
    """Runs each command once, two at a time: most of a short training is the import of torch.

    Tests that measure time must not share the cores, and do not go through here.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._pool = ThreadPoolExecutor(3)
        self._futures: dict[Command, Future[Result]] = {}

    def start(self, command: Command) -> Future[Result]:
        """Have a command run, if it has not been."""
        if command not in self._futures:
            folder = self._root / str(len(self._futures))
            folder.mkdir()
            self._futures[command] = self._pool.submit(command.run, folder)
        return self._futures[command]

    def __call__(self, command: Command) -> Result:
        """The result of a command."""
        return self.start(command).result()

    def close(self) -> None:
        """Start nothing more."""
        self._pool.shutdown(cancel_futures=True)


def run_ranks(program: Path, n_ranks: int) -> subprocess.CompletedProcess[str]:
    """A program under torchrun, to its end."""
    words = ["-m", "torch.distributed.run", "--nproc-per-node", str(n_ranks), "--standalone"]
    return subprocess.run(
        [sys.executable, *words, str(program)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=80,
    )


def gone(pid: int) -> bool:
    """A process that ended: a zombie that nobody has waited for counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it comes to hold within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()
