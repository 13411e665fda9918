"""The entry into the training process: applies the levers that the launcher asked for.

Called at the end of `import torch`, after the chronometer's hooks are in place.
"""

from __future__ import annotations

import functools
import json
import os
import random
import socket
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotlap.levers.common.fingerprint import Fingerprints
from hotlap.levers.common.noise import NOISE
from hotlap.levers.common.own_batches import watch_own_batches
from hotlap.levers.common.process import Process
from hotlap.levers.common.results import watch_results
from hotlap.levers.common.workload import EVENTS_SUFFIX
from hotlap.levers.common.writes import watch_writes

SEEDS_APART = 1_000_003
"""Between the seeds of a script's own that two trials of a proof have."""
MODULE = __name__
"""For the variable by which the launcher has this module installed."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What the launcher asks of the training processes."""

    levers: dict[str, str] = field(default_factory=dict)
    seed: int | None = None
    """Seed torch, random and numpy before the script does, if it does."""
    lever_files: tuple[str, ...] = ()
    """Python files with further levers."""
    is_trial: bool = False
    """Whether it is to be judged: gradients and parameters of the first steps are reported, and
    files that are written outside its folder."""

    VARIABLE = "HOTLAP_LEVERS"

    def to_environment(self) -> dict[str, str]:
        """The variables that carry the orders."""
        document = {
            "levers": self.levers,
            "seed": self.seed,
            "lever_files": list(self.lever_files),
            "is_trial": self.is_trial,
        }
        return {Orders.VARIABLE: json.dumps(document), "HOTLAP_INSTALL": MODULE}

    @staticmethod
    def from_environment() -> Orders:
        """The orders of this process."""
        document = json.loads(os.environ[Orders.VARIABLE])
        document["lever_files"] = tuple(document["lever_files"])
        return Orders(**document)


def install(torch: Any, session: Any) -> Process:
    """Apply the levers of the environment to this process."""
    from hotlap.levers import find_levers

    orders = Orders.from_environment()
    report = EventWriter(Path(session.settings.folder))
    process = Process(torch, session, report)
    if orders.seed is not None:
        _seed(torch, orders.seed)
    process.watch()
    for lever in (NOISE, *find_levers(orders.lever_files)):
        if lever.name in orders.levers:
            process.apply(lever, orders.levers[lever.name])
    if orders.is_trial:  # behind the levers' own hooks: gradients as the optimizer gets them
        session.on_training_call = Fingerprints(torch, report).see_input
        watch_writes(torch, lambda path: report(seen="write", facts={"path": path}))
        if not orders.levers:
            watch_results(process, report)
            watch_own_batches(torch, process, report)
    return process


def _seed(torch: Any, seed: int) -> None:
    """Seed what the script may leave unseeded; other seeds than 0 also shift the script's own."""
    random.seed(seed)
    torch.manual_seed(seed)
    if seed:
        original = torch.manual_seed

        @functools.wraps(original)
        def shifted(own: int) -> Any:
            return original(int(own) + SEEDS_APART * seed)

        torch.manual_seed = shifted
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed)


class EventWriter:
    """Appends events to this process's file; the file is made with the first of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, **event: Any) -> None:
        """Write one event. A training is never stopped by a disk that takes none."""
        path = self._folder / f"{socket.gethostname()}-{os.getpid()}{EVENTS_SUFFIX}"
        try:
            with path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(event) + "\n")
        except (OSError, TypeError, ValueError):
            return
