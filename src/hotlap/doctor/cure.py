"""Gains and cures in the form that all rules give them."""

from __future__ import annotations

import os
from collections.abc import Iterable

from hotlap.doctor.training import Training
from hotlap.levers import LEVERS
from hotlap.levers.common.edits import describe
from hotlap.levers.common.lever import Lever
from hotlap.levers.common.trainers import edits_of
from hotlap.levers.common.workload import Site

BY_NAME = {lever.name: lever for lever in LEVERS}
UNSURE_ON_CPU = ("compile", "channels_last")
"""Levers that make steps on a CPU shorter or longer, by model and processor: measure them."""
MOST_SAVED = 0.99
"""Of a step: what is left of one is never nothing."""


def without(share: float) -> float:
    """The gain of a step that loses this part of itself: Amdahl's law."""
    return 1.0 / (1.0 - min(share, MOST_SAVED))


def lever_gain(training: Training, name: str) -> float | None:
    """Of a lever: the phases that it shortens, and the part of them that it usually saves."""
    if name in UNSURE_ON_CPU and not training.is_on_gpu:
        return None
    lever = BY_NAME[name]
    return without(training.share(*lever.phases) * lever.saves(training.workload))


def lever_cure(training: Training, name: str, value: str | None = None) -> str:
    """How to have a lever without a change to the script, and the change that does the same."""
    lever = BY_NAME[name]
    chosen = value or _first_value(lever, training)
    edits = [describe(edit) for edit in edits_of(lever, chosen, training.workload)]
    asked = f"{name}={chosen}" if chosen != "on" else name
    allow = f" --allow {name}" if lever.changes == "maths" else ""
    text = f"`hotlap tune --only {name}{allow}` proves it, `hotlap run --levers {asked}` has it"
    return f"{text}; the same in the source: {'; '.join(edits)}" if edits else text


def _first_value(lever: Lever, training: Training) -> str:
    return (lever.values(training.workload) or ("on",))[0]


def place(site: Site | None) -> str:
    """A line of the user's source, as seen from here."""
    if site is None:
        return "where it is made"
    path = os.path.relpath(site.file)
    return f"{site.file if path.startswith(os.pardir) else path}:{site.line}"


def places(sites: Iterable[Site | None], most: int = 3) -> str:
    """Several lines."""
    told = list(dict.fromkeys(place(site) for site in sites))
    more = f" and {len(told) - most} more" if len(told) > most else ""
    return ", ".join(told[:most]) + more


def percent(share: float) -> str:
    """A share in a sentence."""
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"
