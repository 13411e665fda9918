"""What a training was seen to do, beside what the levers ask about: the doctor's own events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hotlap.levers.common.workload import Site


@dataclass(frozen=True, slots=True)
class Call:
    """All calls of one function from one line, after the first step."""

    name: str
    site: Site
    in_training: bool
    """Made while the model was in training mode."""
    n: int
    total_s: float


@dataclass(frozen=True, slots=True)
class Habits:
    """Of one process, the one that made the most steps; files opened are those of all."""

    n_steps: int = 0
    """Updates that were made, those of the warm-up too."""
    files: tuple[str, ...] = ()
    """The user's own source files that were executed, the script first."""
    calls: tuple[Call, ...] = ()
    n_opens: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    """As `doctor/inside` tells them: shapes, padding, memory, evaluation, settings, backward,
    updates, layers, ddp, sampler, compiled, opens."""

    def of(self, name: str) -> dict[str, Any]:
        """One part of the facts; empty where it is not known."""
        found = self.facts.get(name)
        return found if isinstance(found, dict) else {}

    @property
    def shapes(self) -> list[tuple[tuple[int, ...], int]]:
        """Of the first tensor that the model is called on, and how often."""
        return [(tuple(shape), n) for shape, n in self.facts.get("shapes", ())]

    @property
    def layers(self) -> list[dict[str, Any]]:
        """Kind, name and sizes of each."""
        found: list[dict[str, Any]] = self.facts.get("layers", [])
        return found

    def site(self, name: str) -> Site | None:
        """The line of a part of the facts."""
        found = self.of(name).get("site")
        return Site(*found) if found else None


def read_habits(seen: Iterable[Mapping[str, Any]]) -> Habits | None:
    """From the events of a Run; None where no process lived to tell."""
    told = [event["facts"] for event in seen if event["seen"] == "habits"]
    if not told:
        return None
    facts = max(reversed(told), key=lambda one: one.get("n_steps", 0))  # the later of equals
    calls = [
        Call(name, Site(file, line), in_training, n, ns / 1e9)
        for name, file, line, in_training, n, ns in facts.get("calls", ())
    ]
    in_workers: dict[str, int] = {}
    for event in seen:
        if event["seen"] == "opens":
            of = event["facts"]
            in_workers[of["process"]] = max(in_workers.get(of["process"], 0), of["n"])
    return Habits(
        n_steps=facts.get("n_steps", 0),
        files=tuple(facts.get("files", ())),
        calls=tuple(calls),
        n_opens=facts.get("opens", {}).get("n", 0) + sum(in_workers.values()),
        facts=facts,
    )
