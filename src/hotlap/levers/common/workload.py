"""What the baseline was seen to do: the events of its process, read by the launcher."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotlap.records.rank import RankRecord
from hotlap.records.run import PHASES, Run

EVENTS_SUFFIX = ".levers"


@dataclass(frozen=True, slots=True)
class Site:
    """A line of the user's own source."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Seen:
    """Something that the training made or called, with the line that did."""

    site: Site | None
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Workload:
    """A training and the machine it runs on, as far as levers ask about them."""

    device: str = "cpu"
    """'cpu' or 'cuda': where the model was when it was first called."""
    device_name: str | None = None
    capability: tuple[int, int] | None = None
    """Compute capability of the CUDA device."""
    is_rocm: bool = False
    torch: str = ""
    n_cpus: int = 1
    """Allocated to this process."""
    world_size: int = 1
    cpu_flags: frozenset[str] = frozenset()
    flags: dict[str, Any] = field(default_factory=dict)
    """Settings of torch as the script leaves them when training begins: see `process.py`."""
    loaders: tuple[Seen, ...] = ()
    """Facts: num_workers, pin_memory, persistent_workers, prefetch_factor, batch_size, shuffle,
    dataset, is_iterable, start_method, has_torchvision, made_by (a package, empty for the user)."""
    optimizers: tuple[Seen, ...] = ()
    """Facts: kind, fused, foreach, differentiable, has_tensor_options, lr, has_group_rates,
    made_by."""
    models: tuple[Seen, ...] = ()
    """Roots of training calls. Facts: kind, n_parameters, dtypes, kinds (modules by class name),
    linears (sizes of linear layers), inputs (shape, dtype, device of each), is_compiled, is_ddp,
    is_channels_last, in_autocast, is_part (of another one), forward_is_torchs,
    is_compiled_in_name, trainer (of a framework), and those of `blocks.py`."""
    own_batches: tuple[Seen, ...] = ()
    """Where the script makes tensors of as many rows as a batch. Facts: rows, function."""
    results: tuple[Seen, ...] = ()
    """What models give back. Facts: kind, the name of its class."""
    ddps: tuple[Seen, ...] = ()
    """Where a DistributedDataParallel is made."""
    backwards: tuple[Seen, ...] = ()
    """Where `backward` is called from. Facts: n_logits, of a cross-entropy behind the model;
    of_probabilities, whether the loss is a binary cross-entropy of what a sigmoid gives."""
    anomalies: tuple[Seen, ...] = ()
    """Where anomaly detection is switched on. Facts: call, `set_detect_anomaly` or another."""
    uses_scaler: bool = False
    phases_s: dict[str, float] = field(default_factory=dict)
    """Of the best settings so far; of the baseline at first."""
    waits_for_host: bool = False
    """Whether the device waits for the host: faster kernels gain nothing then."""

    @property
    def model(self) -> Seen | None:
        """The one that is trained: the largest.

        A part of it may have been seen first, called for a shape while the model was made.
        """
        return max(self.models, key=lambda one: one.facts.get("n_parameters", 0), default=None)

    @property
    def whole_models(self) -> tuple[Seen, ...]:
        """Those that are no part of another: a GAN has two, an encoder may have its decoder."""
        return tuple(one for one in self.models if not one.facts.get("is_part"))

    def is_alone_on_its_line(self, model: Seen) -> bool:
        """Whether the line that calls this model calls no other."""
        return [one.site for one in self.whole_models].count(model.site) == 1

    @property
    def model_site(self) -> Site | None:
        """Where that one is called."""
        return self.model.site if self.model else None

    def share(self, *phases: str) -> float:
        """The part of the step that these phases take."""
        total = sum(self.phases_s.values())
        return sum(self.phases_s.get(name, 0.0) for name in phases) / total if total else 0.0

    def on_device(self, saved: float) -> float:
        """What a lever saves that makes kernels faster: next to nothing if the host is slower."""
        return 0.01 if self.waits_for_host else saved

    def n_modules(self, *kinds: str) -> int:
        """How many modules of these classes the models hold."""
        return sum(
            model.facts.get("kinds", {}).get(kind, 0) for model in self.models for kind in kinds
        )

    @property
    def has_dropout(self) -> bool:
        """Whether a model holds a dropout layer of any kind."""
        return any("Dropout" in kind for model in self.models for kind in model.facts["kinds"])


@dataclass(frozen=True, slots=True)
class Events:
    """What the processes of one trial reported."""

    done: dict[str, list[str]]
    """By lever: what it changed. A lever that found nothing to change is missing."""
    failed: dict[str, str]
    """By lever: why it could not be applied."""
    seen: tuple[dict[str, Any], ...]
    fingerprints: tuple[dict[str, Any], ...]


def read_events(folder: Path) -> Events:
    """The events of a Run's folder; lines that a killed process left half-written are skipped."""
    done: dict[str, list[str]] = {}
    failed: dict[str, str] = {}
    seen: list[dict[str, Any]] = []
    fingerprints: list[dict[str, Any]] = []
    for event in _lines(sorted(folder.glob(f"*{EVENTS_SUFFIX}"))):
        if "done" in event:
            done.setdefault(event["done"], []).append(event["what"])
        elif "failed" in event:
            failed[event["failed"]] = event["why"]
        elif "fingerprint" in event:
            fingerprints.append(event)
        elif "seen" in event:
            seen.append(event)
    return Events(done, failed, tuple(seen), tuple(fingerprints))


def _lines(paths: Iterable[Path]) -> Iterable[dict[str, Any]]:
    for path in paths:
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event


def workload_from(
    events: Events,
    phases_s: dict[str, float],
    n_cpus: int,
    world_size: int,
    cpu_flags: Iterable[str],
) -> Workload:
    """The Workload that a baseline's events describe."""
    by_kind: dict[str, list[Seen]] = {}
    facts: dict[str, Any] = {}
    for event in _with_parts_told(events.seen):
        if event["seen"] == "process":
            facts = event["facts"]
            continue
        site = Site(*event["site"]) if event.get("site") else None
        one = Seen(site, event["facts"])
        if one not in by_kind.setdefault(event["seen"], []):
            by_kind[event["seen"]].append(one)
    capability = facts.get("capability")
    return Workload(
        device=facts.get("device", "cpu"),
        device_name=facts.get("device_name"),
        capability=tuple(capability) if capability else None,
        is_rocm=bool(facts.get("is_rocm")),
        torch=facts.get("torch", ""),
        n_cpus=n_cpus,
        world_size=world_size,
        cpu_flags=frozenset(cpu_flags),
        flags=facts.get("flags", {}),
        loaders=tuple(by_kind.get("loader", ())),
        optimizers=tuple(by_kind.get("optimizer", ())),
        models=tuple(by_kind.get("model", ())),
        own_batches=tuple(by_kind.get("own batch", ())),
        results=tuple(by_kind.get("result", ())),
        ddps=tuple(by_kind.get("ddp", ())),
        backwards=tuple(by_kind.get("backward", ())),
        anomalies=tuple(by_kind.get("anomaly", ())),
        uses_scaler="scaler" in by_kind,
        phases_s=phases_s,
    )


def _with_parts_told(seen: Iterable[dict[str, Any]]) -> Iterable[dict[str, Any]]:
    """Models with the fact that they are parts of others, in the place of numbers.

    Without these, a model that is made anew for each fold is the same one again.
    """
    events = list(seen)
    models = [event["facts"] for event in events if event["seen"] == "model"]
    parts = {number for facts in models for number in facts.get("holds", ())}
    for event in events:
        facts = dict(event["facts"])
        if event["seen"] == "model":
            facts.pop("holds", None)
            held_by, number = facts.pop("held_by", []), facts.pop("number", None)
            facts["is_part"] = bool(held_by) or number in parts
        yield {**event, "facts": facts}


def version_of(torch: str) -> tuple[int, ...]:
    """'2.13.0+cpu' is (2, 13)."""
    parts = torch.split("+")[0].split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())


def phases_of(run: Run | None) -> dict[str, float]:
    """The phases of a Run by name, where they are known."""
    if run is None or run.phases_s is None:
        return {}
    return {name: getattr(run.phases_s, name) for name in PHASES}


def waits_for_host(ranks: Sequence[RankRecord]) -> bool:
    """Phases are only probed now and then where the device is not behind its host."""
    if not ranks:
        return False
    steps = ranks[0].steps
    waits = [
        probe or data is None for probe, data in zip(steps.is_probe, steps.data_ns, strict=True)
    ]
    return 2 * sum(waits) > len(waits)
