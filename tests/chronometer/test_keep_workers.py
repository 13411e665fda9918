"""Workers of a DataLoader under a scheduler's signals, by every way to start a process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from running import SCRIPTS, environment

from hotlap.chronometer import INJECT

pytestmark = pytest.mark.timeout(120)

FIRST_NINE = 36.0


def run(*words: str, keep: str) -> subprocess.CompletedProcess[str]:
    hooks = {"PYTHONPATH": str(INJECT), "HOTLAP_KEEP_WORKERS": keep}
    process = subprocess.Popen(
        [sys.executable, str(SCRIPTS / "signalled_workers.py"), *words],
        env=environment(hooks),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    return subprocess.CompletedProcess(words, process.returncode, stdout, stderr)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_go_on_and_the_training_can_still_end_them(method: str) -> None:
    done = run(method, keep="1")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    truth = json.loads(done.stdout)
    assert truth["total"] == FIRST_NINE
    assert truth["told"] == sorted((signal.SIGTERM, signal.SIGUSR1))
    assert truth["other"] == -signal.SIGTERM


def test_a_worker_in_a_long_read_does_not_keep_the_training_from_its_end() -> None:
    done = run("fork", "stuck", keep="1")
    assert (done.returncode, done.stderr) == (0, "")


def test_without_the_hook_the_workers_die() -> None:
    done = run("fork", keep="")
    assert done.returncode == 1
    assert "DataLoader worker" in done.stderr


def test_a_python_without_torch_starts_as_ever(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import sys; print('torch' in sys.modules)"]
    hooks = {"PYTHONPATH": str(INJECT), "HOTLAP_KEEP_WORKERS": "1"}
    done = subprocess.run(
        words, env=environment(hooks), cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("False\n", "")
