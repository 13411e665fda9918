"""A real Slurm on this machine for as long as the tests run: six nodes, GPUs in name, accounting.

    munged, mariadbd, slurmdbd, slurmctld, and a slurmd for each node

all with their files in one folder and on ports of their own: nothing of the machine is changed, and
a Slurm that it may have is not seen. Six slurmd on one machine make six nodes, so that several
nodes and uneven tasks are real. Each has its own host name and sees the cluster's `/etc/hosts`, in
namespaces that only root can make: tasks resolve the names of nodes as on any cluster.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
NODES = ("v1", "v2", "a1", "a2", "h1", "h2")
N_GPU_FILES = 8
START_TIMEOUT_S = 60
JOB_TIMEOUT_S = 90
NOT_FOR_JOBS = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "TORCHELASTIC_")
"""Left by a Slurm or a launcher that the tests themselves run under."""
RANK_VARIABLES = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)

NODE = 'hostname "$1" && mount --bind "$2" /etc/hosts && exec slurmd -D -N "$1"'
DATABASE = """\
create user slurm@'127.0.0.1' identified by 'slurm';
create database slurm_acct_db;
grant all on slurm_acct_db.* to slurm@'127.0.0.1';
"""


class Cluster:
    """Started on entering its `with` block, gone after it, whatever happened in between."""

    def __init__(self) -> None:
        # Not below pytest's own folder: the path of a socket must be short.
        self.state = Path(tempfile.mkdtemp(prefix="hotlap-slurm-"))
        self._daemons: list[tuple[str, subprocess.Popen[bytes]]] = []

    def __enter__(self) -> Cluster:
        try:
            self._write_files()
            self._start_munge()
            self._start_accounting()
            self._start_slurm()
            self._add_accounts()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def srun(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        """What `srun WORDS` prints."""
        return self._output(["srun", *words], env)

    def salloc(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        """What `salloc WORDS` prints: options, then the command that stands for a user's shell."""
        return self._output(["salloc", *words], env)

    def sbatch(self, script: str, *options: str, env: Mapping[str, str] | None = None) -> str:
        """What a batch script prints, once its job is over."""
        wait = ["sbatch", "--wait", "--parsable", f"--output={self.state}/job-%j.out", *options]
        done = self.run(wait, env, stdin=f"#!/bin/bash\nset -e\n{script}\n")
        output = self.state / f"job-{done.stdout.strip()}.out"
        printed = output.read_text() if output.exists() else ""
        assert done.returncode == 0, f"{done.stderr}\n{printed}"
        return printed

    def popen(self, words: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.Popen:
        """Start one of Slurm's commands and do not wait for it."""
        pipe = subprocess.PIPE
        return subprocess.Popen(
            words, env=self.environment(env), stdout=pipe, stderr=pipe, text=True
        )

    def run(
        self, words: Sequence[str], env: Mapping[str, str] | None = None, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run one of Slurm's commands to its end."""
        return subprocess.run(
            words,
            env=self.environment(env),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=JOB_TIMEOUT_S,
        )

    def _output(self, words: Sequence[str], env: Mapping[str, str] | None = None) -> str:
        done = self.run(words, env)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}\n{done.stdout}"
        return done.stdout

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """For commands that talk to this cluster and no other."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(NOT_FOR_JOBS) and name not in RANK_VARIABLES
        }
        own = {"SLURM_CONF": f"{self.state}/slurm.conf", "OMP_NUM_THREADS": "1"}
        return {**kept, **own, **(extra or {})}

    def stop(self) -> None:
        """Cancel what runs, end the daemons that were started, the last one first."""
        if any(name == "slurmctld" for name, _ in self._daemons):
            with contextlib.suppress(OSError, subprocess.SubprocessError):
                self.run(["scancel", f"--user={getpass.getuser()}"])
                wait_for(lambda: not self.run(["squeue", "-h"]).stdout, "the last jobs to end", 20)
        for _, process in reversed(self._daemons):
            process.terminate()
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._daemons.clear()
        shutil.rmtree(self.state, ignore_errors=True)

    def _write_files(self) -> None:
        for folder in ("log", "slurmctld", "gpu", "mariadb", *(f"spool/{node}" for node in NODES)):
            (self.state / folder).mkdir(parents=True)
        for n in range(N_GPU_FILES):
            (self.state / "gpu" / str(n)).symlink_to("/dev/null")
        words = {"STATE": str(self.state), "USER": getpass.getuser(), **self._ports()}
        for name in ("slurm.conf", "gres.conf", "slurmdbd.conf", "accounts"):
            self._write(name, _fill((HERE / f"{name}.in").read_text(), words), 0o600)
        self._write("hosts", f"127.0.0.1 localhost {' '.join(NODES)}\n", 0o644)
        key = self.state / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(os.urandom(128))

    def _write(self, name: str, text: str, mode: int) -> None:
        path = self.state / name
        path.write_text(text)
        path.chmod(mode)

    def _ports(self) -> dict[str, str]:
        daemons = ("SLURMCTLD", "SLURMDBD", "MARIADB", *(node.upper() for node in NODES))
        ports = dict(zip(daemons, free_ports(len(daemons)), strict=True))
        self._mariadb_port = ports["MARIADB"]
        return {f"{name}_PORT": str(port) for name, port in ports.items()}

    def _start_munge(self) -> None:
        files = {name: f"{self.state}/munge.{name}" for name in ("key", "socket", "pid", "seed")}
        words = ["munged", "--foreground", "--force", f"--log-file={self.state}/log/munged.log"]
        words += [f"--{name}{'' if name == 'socket' else '-file'}={files[name]}" for name in files]
        self._start("munged", words)
        wait_for(Path(files["socket"]).exists, "munged")

    def _start_accounting(self) -> None:
        where = ["--no-defaults", f"--datadir={self.state}/mariadb", f"--user={getpass.getuser()}"]
        # Without --auth-root..., root of the database would have to be root of the machine.
        install = ["mariadb-install-db", *where, "--auth-root-authentication-method=normal"]
        self._output([*install, "--skip-test-db"])
        quick = ["--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0"]
        # slurmdbd insists on it.
        patient = "--innodb-lock-wait-timeout=900"
        server = f"--socket={self.state}/mariadb.socket"
        network = [f"--port={self._mariadb_port}", "--bind-address=127.0.0.1"]
        self._start("mariadbd", ["mariadbd", *where, server, *network, *quick, patient])
        client = ["mariadb", "--no-defaults", "--user=root", server]
        wait_for(
            lambda: self._works([*client, "--execute=select 1"]), "mariadbd", check=self._alive
        )
        self._output([*client, f"--execute={DATABASE}"])
        self._start("slurmdbd", ["slurmdbd", "-D"])
        ask = ["sacctmgr", "-n", "list", "cluster"]
        wait_for(lambda: self._works(ask), "slurmdbd", check=self._alive)

    def _start_slurm(self) -> None:
        self._start("slurmctld", ["slurmctld", "-D"])
        for node in NODES:
            words = ["unshare", "--uts", "--mount", "sh", "-c", NODE, "sh"]
            self._start(f"slurmd of {node}", [*words, node, f"{self.state}/hosts"])
        idle = ["sinfo", "-h", "-N", "-t", "idle", "-o", "%N"]
        wait_for(
            lambda: set(self.run(idle).stdout.split()) == set(NODES), "nodes", check=self._alive
        )

    def _add_accounts(self) -> None:
        """Only once slurmctld has told slurmdbd of the cluster and its GPUs."""
        done = self.run(["sacctmgr", "-i"], stdin=(self.state / "accounts").read_text())
        assert done.returncode == 0, done.stdout + done.stderr

    def _start(self, name: str, words: Sequence[str]) -> None:
        # In a session of their own, so that Ctrl-C reaches the tests alone, which end them in
        # order; and with a signal at the death of their parent, should the tests be killed.
        log = self.state / "log" / f"{name.replace(' ', '-')}.out"
        with log.open("wb") as stream:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", "--", *words],
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        self._daemons.append((name, process))

    def _works(self, words: Sequence[str]) -> bool:
        return self.run(words).returncode == 0

    def _alive(self) -> None:
        for name, process in self._daemons:
            if process.poll() is not None:
                log = self.state / "log" / f"{name.replace(' ', '-')}.out"
                raise AssertionError(f"{name} ended with {process.returncode}: {log.read_text()}")


def wait_for(
    is_true: Callable[[], bool],
    what: str,
    timeout_s: float = START_TIMEOUT_S,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Wait until something is true; `check` may find out that it never will be."""
    end = time.monotonic() + timeout_s
    while not is_true():
        check()
        if time.monotonic() > end:
            raise TimeoutError(f"waited {timeout_s} s for {what}")
        time.sleep(0.1)


def free_ports(n: int) -> list[int]:
    """Ports that nobody listens on, all different."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _fill(text: str, words: Mapping[str, str]) -> str:
    for name, value in words.items():
        text = text.replace(f"@{name}@", value)
    return text
