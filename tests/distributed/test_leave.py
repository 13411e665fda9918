"""A rank that has talked to others ends with its own exit code, and says all that it had to say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from running import run_ranks

RANK = """
import atexit, sys, torch, torch.distributed as dist
from hotlap.distributed.leave import leave
atexit.register(print, "last words", end="")
dist.init_process_group("gloo")
held = [dist.group.WORLD, *(dist.new_group() for _ in range(4))]
sys.setswitchinterval(1000)  # gloo's threads do not get the interpreter before this one ends
for group in held:
    dist.all_reduce(torch.ones(4), group=group)
dist.destroy_process_group()
leave(0)
"""


@pytest.mark.timeout(90)
def test_ranks_that_end_right_after_a_collective_end_well(tmp_path: Path) -> None:
    """Without `leave` half of these four are aborted."""
    program = tmp_path / "program.py"
    program.write_text(RANK)
    done = run_ranks(program, 4)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "last words" * 4


def test_the_exit_code_is_the_one_asked_for() -> None:
    program = "from hotlap.distributed.leave import leave; leave(85)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 85
