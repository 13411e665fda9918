"""What a rule is: a name, what it needs to know, and a function from a case to findings.

    Case      all that is known when the doctor looks: the Machine always; of a command the Run,
              the Training (Run, Workload, habits, source) where steps of it were measured, and the
              Profile where some were looked at kernel by kernel
    Rule      one thing that may be wrong; its file's docstring says what and why

A rule that needs what a case does not have is not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from hotlap.doctor.kernels import Kernels, kernels_of
from hotlap.doctor.thresholds import Thresholds
from hotlap.doctor.training import Training
from hotlap.records.finding import Finding
from hotlap.records.machine import Machine
from hotlap.records.profile import Profile
from hotlap.records.run import Run
from hotlap.records.system import Gpu

Need = Literal["machine", "run", "training", "profile"]


@dataclass(frozen=True, slots=True)
class Case:
    machine: Machine
    run: Run | None = None
    training: Training | None = None
    what_was_seen: str = ""
    """Of a command that made no step: what it did instead."""
    profile: Profile | None = None

    @property
    def kernels(self) -> Kernels | None:
        """What the first rank that was profiled spends its step on."""
        if self.training is None or self.profile is None:
            return None
        step_s = self.training.step.mean
        data_s = step_s * self.training.share("data")
        return kernels_of(self.profile, step_s, data_s, self.machine.ceilings)

    def has(self, need: Need) -> bool:
        """Whether this part of a case is known."""
        return getattr(self, need) is not None

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The GPUs that a training may have."""
        return tuple(gpu for gpu in self.machine.system.gpus if gpu.is_visible)

    @property
    def n_gpus(self) -> int:
        """GPUs that the CPUs of this process have to serve.

        A task of srun's has CPUs of its own and often sees the GPUs of all tasks on its node.
        """
        scheduler = self.machine.system.scheduler
        n_tasks = (scheduler.n_tasks if scheduler else None) or 1
        n_each = len(self.gpus) // max(1, n_tasks // self.n_nodes)
        return max(1, n_each) if self.gpus else 0

    @property
    def environment(self) -> dict[str, str]:
        """The variables that matter and are set."""
        return self.machine.software.environment

    @property
    def n_nodes(self) -> int:
        """Of the job; one where there is none."""
        scheduler = self.machine.system.scheduler
        return (scheduler.n_nodes if scheduler else None) or 1


Check = Callable[[Case, Thresholds], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Rule:
    name: str
    check: Check
    needs: tuple[Need, ...] = ("machine",)


def training_rule(
    name: str, check: Callable[[Training, Case, Thresholds], Iterable[Finding]]
) -> Rule:
    """A rule on a command whose steps were measured."""

    def check_training(case: Case, limits: Thresholds) -> Iterable[Finding]:
        assert case.training is not None
        return check(case.training, case, limits)

    return Rule(name, check_training, needs=("training",))


def profile_rule(
    name: str, check: Callable[[Kernels, Training, Thresholds], Iterable[Finding]]
) -> Rule:
    """A rule on the kernels of a step, or on its operators where there is no device."""

    def check_kernels(case: Case, limits: Thresholds) -> Iterable[Finding]:
        assert case.training is not None
        kernels = case.kernels
        return () if kernels is None else check(kernels, case.training, limits)

    return Rule(name, check_kernels, needs=("training", "profile"))


def is_on(value: str | None) -> bool:
    """Whether a variable of the environment switches something on."""
    return (value or "").strip().lower() not in ("", "0", "off", "false", "no", "none")


def named(gpus: Iterable[Gpu]) -> str:
    """GPUs in a sentence."""
    return ", ".join(f"GPU {gpu.index}" for gpu in gpus)
