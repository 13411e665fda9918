"""What a job made of what it had, as plain text."""

from __future__ import annotations

from collections.abc import Iterator

from hotlap.records.job import Efficiency
from hotlap.report.terminal import quantity
from hotlap.slurm.states import state_in_words

SHORT = 0.5
"""A job that needed less of its limit could have asked for less, and started sooner."""


def render_efficiency(found: Efficiency) -> str:
    """One line a fact; what is not known is not shown."""
    lines = [f"job {found.job} ({found.name}): {state_in_words(found.state)}", ""]
    lines += [f"  {name:<14}{text}" for name, text in _facts(found)]
    return "\n".join([*lines, *(f"  note: {note}" for note in _notes(found))])


def _facts(found: Efficiency) -> Iterator[tuple[str, str]]:
    attempts = f" in {found.attempts} attempts" if found.attempts > 1 else ""
    limit = f", limit {found.limit_h:.2f} h" if found.limit_h else ""
    yield "time", f"{found.elapsed_h:.2f} h{attempts}{limit}"
    yield "GPUs", f"{found.gpus}, {quantity(found.gpu_hours)} GPU hours"
    if found.gpu_use is not None and found.wasted_gpu_hours is not None:
        yield "GPU use", f"{_share(found.gpu_use)} of the job's time"
        yield "wasted", f"{quantity(found.wasted_gpu_hours)} GPU hours"
    if found.data_wait is not None:
        yield "data wait", f"{_share(found.data_wait)} of its steps"
    if found.mfu is not None:
        yield "MFU", _share(found.mfu)
    if found.core_use is not None:
        yield "cores", f"{found.cores}, {_share(found.core_use)} used"
    if found.memory_gb is not None:
        yield "memory", f"{found.memory_gb:.2f} GB at most in one task"
    if found.gpu_energy_kwh is not None:
        watts = f", {found.gpu_mean_w:.0f} W" if found.gpu_mean_w is not None else ""
        yield "GPU energy", f"{found.gpu_energy_kwh:.3f} kWh{watts}"
    if found.node_energy_kwh is not None:
        yield "node energy", f"{found.node_energy_kwh:.3f} kWh"
    if found.runs:
        yield "Runs", ", ".join(found.runs)


def _share(value: float) -> str:
    return f"{100 * value:.0f} %"


def _notes(found: Efficiency) -> Iterator[str]:
    yield from found.notes
    is_done = found.state.startswith("COMPLETED") and found.attempts == 1
    if is_done and found.limit_h and found.elapsed_h < SHORT * found.limit_h:
        yield (
            f"it needed {found.elapsed_h:.2f} of {found.limit_h:.2f} h: with a shorter --hours "
            "it would have started sooner"
        )
