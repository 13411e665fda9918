"""Rank files to a Run: pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from typing import Any

from hotlap import __version__
from hotlap.chronometer.steps import DATA_IS_INFERRED
from hotlap.machine.peaks import Peak, find_peak
from hotlap.records.rank import RankRecord
from hotlap.records.run import (
    PHASES,
    Flops,
    Memory,
    Phases,
    Power,
    RankSummary,
    Run,
    Spread,
    Status,
    Steps,
    Validation,
)

MAX_AUTOMATIC_WARMUP = 10
MIN_POWER_WINDOW_S = 1.0


def automatic_warmup(n_steps: int) -> int:
    """Steps to leave out where nobody said: a tenth, at least one, at most ten."""
    return 0 if n_steps < 2 else max(1, min(MAX_AUTOMATIC_WARMUP, n_steps // 10))


@dataclass(frozen=True, slots=True)
class Ending:
    """How the command ended, as the launcher saw it."""

    status: Status
    exit_code: int | None
    total_s: float
    notes: tuple[str, ...] = ()


def merge(
    ranks: Sequence[RankRecord],
    *,
    run_id: str,
    command: Sequence[str],
    started: str,
    machine: dict[str, Any],
    ending: Ending,
    warmup: int | None,
    last_step: int | None = None,
    levers: dict[str, str] | None = None,
) -> Run:
    """One Run of all the ranks of a command; steps after `last_step` were not asked for."""
    ranks, notes = training_ranks(ranks)
    n_steps = min((len(rank.steps.total_ns) for rank in ranks), default=0)
    n_steps = n_steps if last_step is None else min(n_steps, last_step)
    skip = min(automatic_warmup(n_steps) if warmup is None else warmup, n_steps)
    window = Window(ranks, skip, n_steps)
    phases = window.phases()
    notes += [*window.notes(), *(note for rank in ranks for note in rank.notes)]
    notes += [*ending.notes, *_missing_ranks(ranks)]
    step_s = window.step_spread()
    flops = window.flops()
    return Run(
        id=run_id,
        command=tuple(command),
        status=ending.status,
        exit_code=ending.exit_code,
        started=started,
        hotlap=__version__,
        world_size=ranks[0].world_size if ranks else None,
        machine={**machine, "process": ranks[0].process if ranks else None},
        levers=levers or {},
        total_s=ending.total_s,
        steps=Steps(measured=window.n, warmup=skip),
        samples_per_s=window.samples_per_s(),
        steps_per_s=1 / step_s.mean if step_s and step_s.mean else None,
        step_s=step_s,
        phases_s=phases,
        spreads_s=window.spreads(),
        first_step_load_s=_first_load(ranks),
        validation=_validation(ranks),
        memory=_memory(ranks),
        power=window.power(),
        flops=flops,
        loss=_losses(ranks),
        ranks=tuple(window.summaries()),
        verdict=verdict(phases, step_s, ranks),
        notes=tuple(dict.fromkeys(notes)),
    )


def training_ranks(records: Iterable[RankRecord]) -> tuple[list[RankRecord], list[str]]:
    """The ranks of one training, in order; of several trainings the one with the most steps."""
    trained = [record for record in records if record.steps.total_ns]
    groups: dict[int, list[RankRecord]] = {}
    for record in trained:
        groups.setdefault(record.rank, []).append(record)
    if not trained:
        return [], []
    if max(map(len, groups.values())) == 1:
        return [groups[rank][0] for rank in sorted(groups)], []
    best = max(trained, key=lambda record: len(record.steps.total_ns))
    chosen = [
        max(group, key=lambda r: (r.host == best.host, len(r.steps.total_ns)))
        for _, group in sorted(groups.items())
        if best.world_size > 1
    ] or [best]
    return chosen, [
        f"{len(trained)} separate training processes were seen; the figures are those of the one "
        f"with the most steps (process {best.pid} on {best.host})"
    ]


class Window:
    """The measured steps of all ranks."""

    def __init__(self, ranks: Sequence[RankRecord], skip: int, n_steps: int) -> None:
        self.ranks, self.skip, self.stop = ranks, skip, n_steps
        self.n = n_steps - skip
        self._phase_scale = 1.0
        steps = range(skip, n_steps)
        plain = [i for i in steps if not any(rank.steps.is_probe[i] for rank in ranks)]
        self.timed = plain or list(steps)
        """The steps whose length counts."""
        self.split = [i for i in steps if all(r.steps.data_ns[i] is not None for r in ranks)]
        """The steps whose phases are known."""
        self.profiled = [
            i
            for i in steps
            if any(rank.steps.is_probe[i] and rank.steps.data_ns[i] is None for rank in ranks)
        ]
        """The steps whose length and phases were given up for a profile."""
        if (self.split and len(self.split) < self.n) or not plain:
            split_mean = fmean(self._mean_s("total", self.split)) if self.split else 0.0
            if split_mean:
                self._phase_scale = fmean(self._mean_s("total", self.timed)) / split_mean

    def _mean_s(self, name: str, steps: Sequence[int]) -> list[float]:
        columns = [getattr(rank.steps, f"{name}_ns") for rank in self.ranks]
        scale = 1e9 * len(columns)
        return [sum(column[i] for column in columns) / scale for i in steps]

    def lengths_s(self) -> list[float]:
        """The length of each step that counts, mean over the ranks."""
        return self._mean_s("total", self.timed) if self.n else []

    def phase_s(self, name: str) -> list[float]:
        """A phase's seconds in each step where it is known, scaled to the mean step."""
        return [value * self._phase_scale for value in self._mean_s(name, self.split)]

    def step_spread(self) -> Spread | None:
        """The step."""
        return spread_of(self.lengths_s()) if self.n else None

    def spreads(self) -> dict[str, Spread]:
        """Each phase, and the step without its data."""
        if not self.split:
            return {}
        by_phase = {phase: self.phase_s(phase) for phase in PHASES}
        train = [
            sum(row) - data for *row, data in zip(*by_phase.values(), by_phase["data"], strict=True)
        ]
        return {name: spread_of(values) for name, values in {**by_phase, "train": train}.items()}

    def phases(self) -> Phases | None:
        """Means that add up to the mean step."""
        if not self.split:
            return None
        return Phases(**{phase: fmean(self.phase_s(phase)) for phase in PHASES})

    def notes(self) -> list[str]:
        """How the figures were found, where that is not in the usual way."""
        notes = []
        if any(peak.is_measured for peak in self._peaks()):
            notes.append(
                "MFU is against the matrix rate that `hotlap doctor` measured: no data sheet of "
                "this device is known"
            )
        n_own = self.n - len(self.profiled)
        if self.profiled:
            notes.append(
                f"{len(self.profiled)} of {self.n} steps ran under the profiler: neither their "
                "lengths nor their phases are in the figures"
            )
        if n_own and len(self.split) < n_own:
            notes.append(
                f"the phases were measured on the device in {len(self.split)} of {n_own} steps "
                "and scaled to the mean step: the device waits for the host, which events would "
                "slow"
            )
        return notes

    def _seconds(self, rank: RankRecord) -> float:
        """Time of the measured steps; a probed one counts with the mean of the others."""
        if not self.timed:
            return 0.0
        return sum(rank.steps.total_ns[i] for i in self.timed) / 1e9 * self.n / len(self.timed)

    def _samples(self, rank: RankRecord) -> int | None:
        samples = rank.steps.samples[self.skip : self.stop]
        known = [n for n in samples if n is not None]
        return sum(known) if known and len(known) == len(samples) else None

    def samples_per_s(self) -> float | None:
        rates = []
        for rank in self.ranks:
            samples, seconds = self._samples(rank), self._seconds(rank)
            if samples is None or not seconds:
                return None
            rates.append(samples / seconds)
        return sum(rates) if rates and self.n else None

    def summaries(self) -> Iterable[RankSummary]:
        for rank in self.ranks:
            mean = self._seconds(rank) / self.n if self.n else None
            yield RankSummary(rank.rank, rank.host, mean, self._samples(rank) if self.n else None)

    def flops(self) -> Flops:
        # Counted on rank 0 alone; the ranks of a data-parallel training do the same work.
        counted = self.ranks[0].steps.flops[self.skip : self.stop] if self.n else ()
        known = [flops for flops in counted if flops is not None]
        ceiling = self._ceiling()
        if not known or len(known) < len(counted):
            return Flops(None, None, ceiling, None)
        per_step = fmean(known) * len(self.ranks)
        per_s = per_step / fmean(self.lengths_s())
        return Flops(per_step, per_s, ceiling, per_s / ceiling if ceiling else None)

    def _peaks(self) -> list[Peak]:
        """Of each rank's device; none where one of them is not known."""
        process = [rank.process for rank in self.ranks]
        peaks = [find_peak(p.get("device"), p.get("device_memory_bytes")) for p in process]
        known = [peak for peak in peaks if peak is not None]
        return known if len(known) == len(peaks) else []

    def _ceiling(self) -> float | None:
        return sum(peak.flops_per_s for peak in self._peaks()) or None

    def power(self) -> Power:
        """Sums over the GPUs; two ranks on one GPU see the same counter."""
        by_device: dict[str, tuple[float, float, float]] = {}
        for rank in self.ranks:
            measured = self._rank_power(rank)
            if measured is None:
                return Power(None, None, None, None)
            by_device[f"{rank.host} {rank.process.get('device_uuid')}"] = measured
        if not by_device:
            return Power(None, None, None, None)
        mean_w, peak_w, energy_j = (sum(column) for column in zip(*by_device.values(), strict=True))
        samples = [self._samples(rank) for rank in self.ranks]
        total = sum(n for n in samples if n is not None) if None not in samples else None
        return Power(mean_w, peak_w, energy_j, total / energy_j if total and energy_j else None)

    def _rank_power(self, rank: RankRecord) -> tuple[float, float, float] | None:
        """Mean and peak power and energy over the measured steps, by the energy counter."""
        if self.n < 1 or not rank.power:
            return None
        ends = rank.steps.end_ns
        start = ends[self.skip - 1] if self.skip else ends[0] - rank.steps.total_ns[0]
        inside = [row for row in rank.power if start <= row[0] <= ends[self.stop - 1]]
        if len(inside) < 2 or inside[-1][0] - inside[0][0] < MIN_POWER_WINDOW_S * 1e9:
            return None
        seconds = (inside[-1][0] - inside[0][0]) / 1e9
        mean_w = (inside[-1][1] - inside[0][1]) / 1e3 / seconds
        peak_w = max(row[2] for row in inside) / 1e3
        return mean_w, peak_w, mean_w * (ends[self.stop - 1] - start) / 1e9


def spread_of(values: Sequence[float]) -> Spread:
    """Mean, deviation and percentiles."""
    ordered = sorted(values)
    return Spread(
        mean=fmean(ordered),
        std=pstdev(ordered),
        min=ordered[0],
        median=median(ordered),
        p10=_percentile(ordered, 0.1),
        p90=_percentile(ordered, 0.9),
    )


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between the closest ranks."""
    place = share * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low + (high - low) * (place - math.floor(place))


def _losses(ranks: Sequence[RankRecord]) -> tuple[float | None, ...]:
    """Of each step, the mean over the ranks; of one rank, its own bits."""
    if len(ranks) < 2:
        return ranks[0].steps.loss if ranks else ()
    columns = zip(*(rank.steps.loss for rank in ranks), strict=False)
    return tuple(None if None in row else fmean(row) for row in columns)


def _first_load(ranks: Sequence[RankRecord]) -> float | None:
    loads = [rank.first_load_ns for rank in ranks if rank.first_load_ns is not None]
    return fmean(loads) / 1e9 if loads else None


def _validation(ranks: Sequence[RankRecord]) -> Validation | None:
    passes = ranks[0].validations if ranks else ()
    if not passes:
        return None
    full = []
    for one in passes:
        if one.full_batches is not None and one.batches:
            full.append(one.total_ns / 1e9 / one.batches * one.full_batches)
    return Validation(
        n=len(passes),
        mean_s=fmean(one.total_ns for one in passes) / 1e9,
        batches=sum(one.batches for one in passes),
        full_set_s=fmean(full) if full else None,
    )


def _memory(ranks: Sequence[RankRecord]) -> Memory:
    def worst(name: str) -> int | None:
        known = [v for rank in ranks if (v := getattr(rank, name)) is not None]
        return max(known, default=None)

    return Memory(
        *(worst(f"{name}_bytes") for name in ("device_peak", "device_reserved", "host_peak"))
    )


def _missing_ranks(ranks: Sequence[RankRecord]) -> list[str]:
    if not ranks or len(ranks) >= ranks[0].world_size:
        return []
    return [
        f"only {len(ranks)} of {ranks[0].world_size} ranks left a measurement: "
        "sums are of those alone"
    ]


def verdict(phases: Phases | None, step: Spread | None, ranks: Sequence[RankRecord]) -> str:
    """What the step does most, in one sentence."""
    if phases is None or step is None or not step.mean:
        return "no training step was measured"
    shares = {phase: getattr(phases, phase) / step.mean for phase in PHASES}
    largest = max(shares, key=lambda phase: shares[phase])
    inferred = any(DATA_IS_INFERRED in rank.notes for rank in ranks)
    wording = {
        "data": "of the step passes before the first module call: data, as far as can be seen"
        if inferred
        else "of the step waits for data",
        "transfer": "of the step copies batches to the device",
        "forward": "of the step is the forward pass",
        "backward": "of the step is the backward pass",
        "optimizer": "of the step is the optimizer",
        "other": "of the step is outside of data, model and optimizer: other code of the loop",
    }
    return f"{100 * shares[largest]:.0f} % {wording[largest]}"
