"""A plan that is ended while its model is traced takes what it has started along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import gone, wait_for

FACTORY = """
import os, time
from pathlib import Path

def make():
    Path("tracing").write_text(str(os.getpid()))
    time.sleep(600)
"""
QUESTION = (
    *("--gpu", "h200-141gb", "--gpus", "1", "--batch", "8", "--image", "32"),
    *("--precision", "fp32", "--optimizer", "sgd"),
)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_nothing_of_a_plan_outlives_it(tmp_path: Path, number: int, code: int) -> None:
    (tmp_path / "slow.py").write_text(FACTORY)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-m", "hotlap", "plan", "slow:make", *QUESTION]
    with subprocess.Popen(words, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True) as plan:
        note = tmp_path / "tracing"
        while not (note.exists() and note.read_text()):
            assert plan.poll() is None, plan.stderr.read() if plan.stderr else ""
            time.sleep(0.05)
        plan.send_signal(number)
        assert plan.wait(30) == code
    assert wait_for(lambda: gone(int(note.read_text())), 10)
    assert list(temporary.glob("hotlap-*")) == []
