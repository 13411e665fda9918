"""What tests of levers share: a training with levers, and what a baseline may have seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from running import Result, run_hotlap

from hotlap.levers import LEVERS
from hotlap.levers.common.edits import Edit, can_apply
from hotlap.levers.common.inside import Orders
from hotlap.levers.common.workload import Events, Seen, Site, Workload, read_events, workload_from

SITE = Site("train.py", 7)
NO_AMX = {"onednn_isa": "AVX512_CORE_FP16"}
"""A lever: on some virtual machines AMX is advertised and kills the process."""
BY_NAME = {lever.name: lever for lever in LEVERS}


def run_with(folder: Path, script: Path, **levers: str) -> tuple[Result, Events]:
    """A training with levers, as the launcher starts it; levers set their own environment."""
    folder.mkdir(exist_ok=True)
    variables = Orders(levers, seed=0).to_environment()
    for name, value in levers.items():
        variables |= BY_NAME[name].environment(value, Workload())
    result = run_hotlap(str(script), folder=folder, options=("--quiet",), env=variables)
    assert result.code == 0, result.stderr.decode()
    events = read_events(result.folder)
    assert events.failed == {}
    return result, events


def seen_in_trial(folder: Path, script: Path) -> Workload:
    """What a baseline of the script is seen to do, results of models included."""
    folder.mkdir()
    variables = Orders({}, seed=0, is_trial=True).to_environment()
    result = run_hotlap(str(script), folder=folder, options=("--quiet",), env=variables)
    assert result.code == 0, result.stderr.decode()
    return workload_from(read_events(result.folder), {}, 1, 1, ())


def is_whole(edits: Sequence[Edit]) -> bool:
    """Whether all of a lever's edits can be made in the source."""
    return bool(edits) and all(map(can_apply, edits))


def a_loader(**facts: Any) -> Seen:
    """A DataLoader as the baseline saw it: torch's defaults, but for these facts."""
    defaults = {"num_workers": 0, "batch_size": 8, "is_iterable": False, "start_method": None}
    return Seen(SITE, {**defaults, **facts})


def a_workload(*loaders: Seen, **fields: Any) -> Workload:
    phases = {"data": 0.5, "forward": 0.5}
    return replace(Workload(loaders=loaders, n_cpus=4, phases_s=phases), **fields)
