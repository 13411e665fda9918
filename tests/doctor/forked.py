"""Visits of scripts through `many.py`: what `hotlap doctor SCRIPT` brings back, and faster."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from running import environment

from hotlap.chronometer.collect import collect_ranks, kernel_oom_kills, status_of
from hotlap.chronometer.launch import Outcome
from hotlap.chronometer.merge import Ending, automatic_warmup, merge
from hotlap.chronometer.profile.collect import make_profile
from hotlap.chronometer.profile.roof import Roofs
from hotlap.doctor.visit import Visit, read_visit
from hotlap.machine.host import describe_host
from hotlap.records.profile import Profile

MANY = Path(__file__).parent / "many.py"
ISA = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
"""Some virtual machines advertise matrix instructions that they do not have."""


class Forked:
    """A process that has torch, and runs scripts in forks of itself."""

    def __init__(self, root: Path) -> None:
        self._root, self._n = root, 0
        self.folder = root
        """Of the last run."""
        self._process = subprocess.Popen(
            [sys.executable, str(MANY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(ISA),
        )

    def visit(
        self, text: str, steps: int = 30, ranks: int = 1, levers: dict[str, str] | None = None
    ) -> Visit:
        """Write a script, run it for some steps, and read what it left."""
        return read_visit(self.run(text, steps, ranks, levers=levers))

    def profile(self, text: str, ranks: int = 1) -> Profile:
        """Write a script, run it until its profile is made, and read that."""
        outcome = self.run(text, 30, ranks, is_profiled=True)
        return make_profile(outcome.folder, outcome.run, Roofs())

    def run(
        self,
        text: str,
        steps: int,
        ranks: int = 1,
        is_profiled: bool = False,
        levers: dict[str, str] | None = None,
    ) -> Outcome:
        """Write a script and run it, for its steps or until its profile is made."""
        self._n += 1
        folder = self.folder = self._root / str(self._n)
        folder.mkdir()
        script = folder / "train.py"
        script.write_text(text)
        warmup = automatic_warmup(steps * 10 // 9)
        began = time.monotonic()
        last_step = steps + warmup
        order = {"script": str(script), "folder": str(folder), "steps": last_step, "ranks": ranks}
        code = self._ask({**order, "profile": is_profiled, "levers": levers or {}})["code"]
        records, notes = collect_ranks(folder)
        run = merge(
            records,
            run_id=str(self._n),
            command=(str(script),),
            started="",
            machine=asdict(describe_host()),
            ending=Ending(
                status_of(code, records, kernel_oom_kills()),
                code,
                time.monotonic() - began,
                tuple(notes),
            ),
            warmup=warmup,
            last_step=last_step,
        )
        logs = sorted(folder.glob("work-*/output.log"))
        assert code == 0, "\n".join(log.read_text() for log in logs)
        return Outcome(run, folder, {})

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
