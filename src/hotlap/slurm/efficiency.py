"""What a job made of what it had: from Slurm's accounts, and from its own Runs.

Neither needs an administrator. The accounts know hours, cores, memory and, at some sites, energy;
a Run knows how long its GPUs waited for data, and what they drew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hotlap.errors import RecordError, UsageError
from hotlap.records.job import Efficiency
from hotlap.records.run import Run
from hotlap.records.store import RunStore
from hotlap.slurm import programs
from hotlap.slurm.forms import count_of, parse_hours
from hotlap.slurm.memory import remembered

COLUMNS = (
    *("JobID", "State", "ElapsedRaw", "Timelimit", "AllocTRES", "TotalCPU", "MaxRSS"),
    *("ConsumedEnergyRaw", "JobName"),
)
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
J_PER_KWH = 3.6e6
NOT_YET = "it is not in the accounts yet"


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of sacct: an attempt of the job, or a step of one."""

    id: str
    state: str
    elapsed_h: float
    limit_h: float | None
    tres: str
    cpu_h: float
    memory_gb: float | None
    energy_j: float
    name: str

    @property
    def is_job(self) -> bool:
        return "." not in self.id


def efficiency(number: str, store: RunStore) -> Efficiency:
    """What is known of a job."""
    rows, away = _accounts(number)
    found = summed(number, rows) if any(row.is_job for row in rows) else _from_memory(number, away)
    if found is None:
        raise UsageError(
            f"neither Slurm nor its accounts know a job {number}; `hotlap queue` lists yours, and "
            f"a task of an array is named as 12_3{f' ({away})' if away else ''}"
        )
    runs = [run for _, run in store.read_all() if not isinstance(run, RecordError)]
    return with_runs(found, [run for run in runs if run.machine.get("slurm_job") == found.job])


def _accounts(number: str) -> tuple[list[_Row], str]:
    """The lines of a job, and why there are none where the cluster keeps no accounts."""
    if not programs.is_there("sacct"):
        return [], "this cluster keeps no accounts"
    words = ["sacct", "--noheader", "--parsable2", "--duplicates", f"--jobs={number}"]
    done = programs.attempt([*words, f"--format={','.join(COLUMNS)}"])
    if done.returncode:
        return [], programs.complaint(done)
    rows = [_row(line) for line in done.stdout.splitlines()]
    tasks = [row.id for row in rows if row.is_job and row.id.startswith(f"{number}_")]
    if tasks:
        raise UsageError(f"{number} is an array of jobs: name one of its tasks, as {tasks[0]}")
    return [row for row in rows if row.id.partition(".")[0] == number], ""


def _row(line: str) -> _Row:
    number, state, elapsed, limit, tres, cpu, memory, energy, name = line.split("|", 8)
    return _Row(
        id=number,
        state=state,
        elapsed_h=float(elapsed or 0) / 3600,
        limit_h=parse_hours(limit),
        tres=tres,
        cpu_h=parse_hours(cpu) or 0.0,
        memory_gb=_memory_gb(memory),
        energy_j=float(energy) if energy.isdigit() else 0.0,
        name=name,
    )


def _memory_gb(text: str) -> float | None:
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "")
    try:
        return float(number) * _UNITS.get(unit, 1) / 1e9
    except ValueError:
        return None


def summed(number: str, rows: Sequence[_Row]) -> Efficiency:
    """All attempts of a job together."""
    jobs = [row for row in rows if row.is_job]
    last = jobs[-1]
    cores = max(count_of(row.tres, "cpu") or 0 for row in jobs)
    core_hours = sum((count_of(row.tres, "cpu") or 0) * row.elapsed_h for row in jobs)
    steps = [row for row in rows if not row.is_job]
    memory = [row.memory_gb for row in steps if row.memory_gb is not None]
    energy_j = sum(row.energy_j for row in steps)
    return Efficiency(
        job=number,
        name=last.name,
        state=last.state,
        attempts=len(jobs),
        gpus=max(count_of(row.tres, "gres/gpu") or 0 for row in jobs),
        cores=cores,
        elapsed_h=sum(row.elapsed_h for row in jobs),
        limit_h=last.limit_h,
        core_use=sum(row.cpu_h for row in jobs) / core_hours if core_hours else None,
        memory_gb=max(memory, default=None),
        node_energy_kwh=energy_j / J_PER_KWH if energy_j else None,
    )


def _from_memory(number: str, away: str) -> Efficiency | None:
    """Of a cluster without accounts, as long as slurmctld remembers the job."""
    records = remembered(number)
    if not records:
        return None
    said = records[0]
    tres = said.get("TRES", said.get("AllocTRES", ""))
    return Efficiency(
        job=number,
        name=said.get("JobName", ""),
        state=said.get("JobState", ""),
        attempts=1,
        gpus=count_of(tres, "gres/gpu") or 0,
        cores=count_of(tres, "cpu") or 0,
        elapsed_h=parse_hours(said.get("RunTime", "")) or 0.0,
        limit_h=parse_hours(said.get("TimeLimit", "")),
        core_use=None,
        memory_gb=None,
        node_energy_kwh=None,
        notes=(f"{away or NOT_YET}: cores, memory and energy are unknown",),
    )


def with_runs(found: Efficiency, runs: Sequence[Run]) -> Efficiency:
    """The same with what its Runs measured."""
    timed = [run for run in runs if run.step_s and run.phases_s]
    notes = list(found.notes)
    if not timed:
        notes.append(
            "no Run of this job was found here: `hotlap submit --time`, or a training by "
            "`hotlap train`, leaves one, and tells of data and GPUs"
        )
        return replace(found, runs=tuple(run.id for run in runs), notes=tuple(notes))
    steps_s = [(run.steps.measured + run.steps.warmup) * _mean(run) for run in timed]
    waits_s = [
        (run.phases_s.data if run.phases_s else 0.0) / _mean(run) * total
        for run, total in zip(timed, steps_s, strict=True)
    ]
    on_gpu = all(run.memory.device_peak_bytes is not None for run in timed)
    if not on_gpu:
        notes.append("its Runs were on the CPU: the GPUs that it had were not used")
    trained_s = sum(steps_s) - sum(waits_s)
    use = min(1.0, trained_s / (found.elapsed_h * 3600)) if found.elapsed_h else None
    energy = [run.power.energy_j for run in timed if run.power.energy_j is not None]
    watts = [run.power.mean_w for run in timed if run.power.mean_w is not None]
    mfu = [run.flops.mfu for run in timed if run.flops.mfu is not None]
    return replace(
        found,
        runs=tuple(run.id for run in runs),
        data_wait=sum(waits_s) / sum(steps_s) if sum(steps_s) else None,
        gpu_use=use if on_gpu else 0.0,
        mfu=mfu[-1] if mfu else None,
        gpu_energy_kwh=sum(energy) / J_PER_KWH if energy else None,
        gpu_mean_w=watts[-1] if watts else None,
        notes=tuple(notes),
    )


def _mean(run: Run) -> float:
    return run.step_s.mean if run.step_s else 0.0
