"""What the profiled processes left in a Run's folder, made into its Profile."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotlap import __version__
from hotlap.chronometer.profile.analyse import Analysed, FindRoof, Left, analyse
from hotlap.chronometer.profile.communication import find_skew
from hotlap.chronometer.profile.files import (
    LINES_SUFFIX,
    LOG_SUFFIX,
    SITES_SUFFIX,
    TIMES_SUFFIX,
    read_log,
)
from hotlap.chronometer.profile.trace import Trace, read_items, read_trace
from hotlap.errors import RecordError
from hotlap.records.profile import Profile
from hotlap.records.rank import RankRecord
from hotlap.records.run import Run

MAX_KEPT_EVENTS = 300_000
"""In the trace for Perfetto, which a browser has to open."""


def make_profile(folder: Path, run: Run, find_roof: FindRoof) -> Profile:
    """Read, analyse and write; the traces stay in the folder, compressed."""
    ranks = _ranks(folder)
    analysed: list[Analysed] = []
    for log in sorted(folder.glob(f"*{LOG_SUFFIX}")):
        left = _left(folder, log, ranks)
        if left is not None:
            analysed.append(analyse(left, find_roof, _shorten))
    analysed.sort(key=lambda one: one.profile.rank)
    profiles = tuple(one.profile for one in analysed)
    notes = [] if profiles else ["no training step was seen, so that there is nothing to profile"]
    n_steps = min((one.n_steps for one in profiles if one.n_steps), default=1)
    skew, why_none = find_skew(
        {one.profile.rank: one.spans for one in analysed if one.profile.n_steps},
        n_steps,
        {one.rank: one.step_s for one in profiles},
    )
    profile = Profile(
        run=run.id,
        command=run.command,
        hotlap=__version__,
        ranks=profiles,
        skew=skew,
        notes=(*notes, *([why_none] if why_none else [])),
    )
    try:
        profile.write(folder)
    except OSError as error:
        note = f"the Profile could not be written to {folder}: {error.strerror}"
        return replace(profile, notes=(*profile.notes, note))
    return profile


def _ranks(folder: Path) -> dict[str, int]:
    """The rank of each process that trained, by host and process id."""
    found = {}
    for path in folder.glob("rank-*.json"):
        try:
            record = RankRecord.read(path)
        except RecordError:
            continue
        found[f"{record.host}-{record.pid}"] = record.rank
    return found


def _left(folder: Path, log: Path, ranks: dict[str, int]) -> Left | None:
    stem = log.name.removesuffix(LOG_SUFFIX)
    host, _, pid = stem.rpartition("-")
    entries = read_log(log)
    log.unlink(missing_ok=True)
    if not entries or not pid.isdigit():
        return None
    notes: list[str] = []
    rank = ranks.get(stem, 0)
    times = _read(folder / f"{stem}{TIMES_SUFFIX}", notes)
    lines = _read(folder / f"{stem}{LINES_SUFFIX}", notes)
    sites = folder / f"{stem}{SITES_SUFFIX}"
    if lines is not None:
        lines = replace(lines, sites=_sites(sites, notes))
    kept = _keep(folder, stem, rank, notes)
    for raw in (TIMES_SUFFIX, LINES_SUFFIX, SITES_SUFFIX):
        (folder / f"{stem}{raw}").unlink(missing_ok=True)
    return Left(rank, host, int(pid), entries, times, lines, kept, tuple(notes))


def _read(path: Path, notes: list[str]) -> Trace | None:
    if not path.exists():
        return None
    try:
        return read_trace(path)
    except (RecordError, KeyError, TypeError, AttributeError) as error:
        notes.append(str(error))
        return None


def _sites(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        notes.append(f"source lines are unknown: {error}")
        return {}
    return found


def _keep(folder: Path, stem: str, rank: int, notes: list[str]) -> str | None:
    """Compress the trace of the window without stacks for Perfetto, its first events if many."""
    raw = folder / f"{stem}{TIMES_SUFFIX}"
    if not raw.exists():
        return None
    kept = folder / f"trace-{rank:05d}.json.gz"
    try:
        n_left_out = write_bounded(read_items(raw), kept, MAX_KEPT_EVENTS)
    except (OSError, RecordError) as error:
        notes.append(f"the trace was not kept: {error}")
        kept.unlink(missing_ok=True)
        return None
    if n_left_out:
        notes.append(
            f"the trace for Perfetto holds the first {MAX_KEPT_EVENTS:,} events of the window; "
            f"{n_left_out:,} are left out"
        )
    return kept.name


def write_bounded(items: Iterable[tuple[str, Any]], path: Path, limit: int) -> int:
    """Write a trace with at most so many events; how many were left out."""
    n = 0
    rest: dict[str, Any] = {}
    with gzip.open(path, "wt", encoding="utf-8", compresslevel=6) as stream:
        stream.write('{"traceEvents":[')
        for event in _events(items, rest):
            n += 1
            if n <= limit:
                stream.write(("," if n > 1 else "") + json.dumps(event, separators=(",", ":")))
        stream.write("]")
        for key, value in rest.items():
            stream.write(f",{json.dumps(key)}:{json.dumps(value)}")
        stream.write("}\n")
    return max(n - limit, 0)


def _events(items: Iterable[tuple[str, Any]], rest: dict[str, Any]) -> Iterator[Any]:
    for key, value in items:
        if key == "traceEvents":
            yield value
        else:
            rest[key] = value


def _shorten(file: str) -> str:
    inside = os.path.relpath(file) if os.path.isabs(file) else file
    return file if inside.startswith("..") else inside
