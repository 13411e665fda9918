"""What a profiled step is spent on, set against the step as it is without a profiler.

A profiler makes the host slower and leaves kernels as they are. So on a device the kernels' times
are taken as they were seen, and what the device idles is what they leave of the true step. On a CPU
operators are made slower like all else: there, shares are of the profiled step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hotlap.chronometer.profile.roof import roof_of
from hotlap.chronometer.profile.sums import Roof
from hotlap.doctor.cure import place
from hotlap.levers.common.workload import Site
from hotlap.records.ceilings import Ceilings
from hotlap.records.profile import Idle, KernelClass, Profile, RankProfile, SiteShare, TopOp

PRODUCTS: tuple[KernelClass, ...] = ("matmul", "conv", "attention")
"""Classes that tensor cores are for."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Of one rank."""

    rank: RankProfile
    step_s: float
    """The mean step: the true one on a device, the profiled one on a CPU."""
    ceilings: Ceilings | None

    @property
    def is_on_device(self) -> bool:
        """Whether times are those of kernels on a GPU."""
        return self.rank.device != "cpu"

    def seconds(self, *kinds: KernelClass) -> float:
        """Of these classes, a step."""
        return sum(one.seconds for one in self.rank.classes if one.name in kinds)

    def share(self, seconds: float) -> float:
        """Of the step."""
        return min(1.0, seconds / self.step_s)

    def idle(self) -> dict[str, float]:
        """Seconds a step in which the device does nothing, by cause."""
        idle = self.rank.idle
        if idle is None or not idle.total_s or self.rank.step_s is None:
            return {}
        busy_s = self.rank.step_s - idle.total_s
        scale = max(0.0, self.step_s - busy_s) / idle.total_s
        return {cause: seconds * scale for cause, seconds in _causes(idle)}

    def top(self, *kinds: KernelClass) -> list[TopOp]:
        """The costly kernels of these classes; of operators on a CPU."""
        return [one for one in self.rank.top if one.kind in kinds]

    def dominates(self, op: TopOp, least_share: float) -> bool:
        """Whether it takes much of the step, and is not one of many of its kind."""
        is_alone = op.kind == "other" or op.seconds > 0.5 * self.seconds(op.kind)
        return is_alone and self.share(op.seconds) >= least_share

    def roof(self, dtype: str | None = None) -> Roof | None:
        """For products of a type: of the one that takes the most time, if none is named."""
        main = next(iter(self.rank.matmul_dtypes), "float32")
        return roof_of(self.rank.device, dtype or main, self.ceilings)


def kernels_of(profile: Profile, step_s: float, ceilings: Ceilings | None) -> Kernels | None:
    """Of the first rank with a window; None where there is none."""
    for rank in profile.ranks:
        if rank.n_steps and rank.step_s:
            is_on_device = rank.device != "cpu"
            return Kernels(rank, step_s if is_on_device else rank.step_s, ceilings)
    return None


def is_update(op: TopOp) -> bool:
    """Whether an optimizer does it."""
    return "_fused_" in op.operator or "_foreach_" in op.operator or "multi_tensor" in op.name


def lines(sites: Iterable[SiteShare]) -> str:
    """Where kernels come from, in a sentence; empty where that is not known."""
    told = []
    for one in list(sites)[:2]:
        module = f" in module {one.site.module}" if one.site.module else ""
        told.append(f"{place(Site(one.site.file, one.site.line))}{module}")
    return ", ".join(told)


def told(op: TopOp) -> str:
    """A kernel or an operator in a line of evidence."""
    where = lines(op.sites)
    return f"{op.operator or op.name}, {op.seconds * 1e3:.3g} ms a step" + (
        f" ({where})" if where else ""
    )


def _causes(idle: Idle) -> tuple[tuple[str, float], ...]:
    return (
        ("data", idle.data_s),
        ("sync", idle.sync_s),
        ("collective", idle.collective_s),
        ("launch", idle.launch_s),
    )
