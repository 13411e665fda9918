"""What a profiled step is spent on, set against the step as it is without a profiler.

A profiler makes the host slower and leaves kernels as they are. So on a device the kernels' times
are taken as they were seen, and the device idles for what they leave of the true step, but never
longer than it was seen to: a GPU that lowers its clocks under load has longer steps than the few
that are profiled, and waits for nobody. On a CPU operators are made slower like all else: there,
shares are of the profiled step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hotlap.chronometer.profile.roof import roof_of
from hotlap.chronometer.profile.sums import Roof
from hotlap.doctor.cure import place, without
from hotlap.doctor.thresholds import Thresholds
from hotlap.levers.common.workload import Site
from hotlap.records.ceilings import Ceilings
from hotlap.records.profile import KernelClass, Profile, RankProfile, SiteShare, TopOp
from hotlap.records.severity import Severity

PRODUCTS: tuple[KernelClass, ...] = ("matmul", "conv", "attention")
"""Classes that tensor cores are for."""
WIDE = ("float32", "tf32")
"""Types of products that 16-bit ones are faster than."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Of one rank."""

    rank: RankProfile
    step_s: float
    """The mean step: the true one on a device, the profiled one on a CPU."""
    ceilings: Ceilings | None
    data_s: float = 0.0
    """Of the true step, while the device waited for a batch."""

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
        """Seconds of the true step in which the device does nothing, by cause."""
        idle = self.rank.idle
        if idle is None:
            return {}
        seen_s = idle.total_s - idle.data_s
        scale = min(1.0, self._left_s() / seen_s) if seen_s > 0 else 0.0
        return {
            "data": self.data_s,
            "sync": idle.sync_s * scale,
            "collective": idle.collective_s * scale,
            "launch": idle.launch_s * scale,
        }

    def beyond_s(self) -> float:
        """Seconds that the true step is longer than what the profile accounts for."""
        idle = self.rank.idle
        seen_s = idle.total_s - idle.data_s if idle is not None else 0.0
        return max(0.0, self._left_s() - seen_s) if self.is_on_device else 0.0

    def _left_s(self) -> float:
        """Of the true step, without its data and without what the device was seen to do."""
        idle_s = self.rank.idle.total_s if self.rank.idle is not None else 0.0
        busy_s = (self.rank.step_s or 0.0) - idle_s
        return max(0.0, self.step_s - self.data_s - busy_s)

    def top(self, *kinds: KernelClass) -> list[TopOp]:
        """The costly kernels of these classes; of operators on a CPU."""
        return [one for one in self.rank.top if one.kind in kinds]

    def dominant(self, least_share: float) -> TopOp | None:
        """The one operation, with all its kernels, that takes so much of the step; if any does.

        One that is neither product, copy, exchange nor update, and not one of many of its kind.
        Norms are none either: a compiler fuses them with what stands around them.
        """
        for op in self.rank.top:
            if op.kind in (*PRODUCTS, "norm", "copy", "collective") or is_update(op):
                continue
            alike = [o for o in self.top(op.kind) if o.operator == op.operator]
            seconds = sum(one.seconds for one in alike)
            is_alone = op.kind == "other" or seconds > 0.5 * self.seconds(op.kind)
            if is_alone and self.share(seconds) >= least_share:
                return replace(op, seconds=seconds, calls=sum(one.calls for one in alike))
        return None

    def roof(self, dtype: str | None = None) -> Roof | None:
        """For products of a type: of the one that takes the most time, if none is named."""
        main = next(iter(self.rank.matmul_dtypes), "float32")
        return roof_of(self.rank.device, dtype or main, self.ceilings)

    def gain_of_narrow(self) -> float | None:
        """Of fp32 products at the rate of 16-bit ones; None where a rate is unknown."""
        narrow = self.roof("bfloat16")
        if narrow is None or not narrow.flops_per_s:
            return None
        saved_s = 0.0
        for dtype in WIDE:
            wide, seconds = self.roof(dtype), self.rank.matmul_dtypes.get(dtype, 0.0)
            if seconds and (wide is None or not wide.flops_per_s):
                return None
            if wide is not None and wide.flops_per_s:
                saved_s += seconds * (1.0 - min(1.0, wide.flops_per_s / narrow.flops_per_s))
        return without(self.share(saved_s))

    def gain_of_rate(self, kind: KernelClass, least_rate: float) -> float | None:
        """Of products of a class at this part of the ceiling; None where a rate is unknown."""
        roof = self.roof()
        flops = next((one.flops for one in self.rank.classes if one.name == kind), None)
        if not self.is_on_device or roof is None or not roof.flops_per_s or not flops:
            return None
        saved_s = self.seconds(kind) - flops / (least_rate * roof.flops_per_s)
        return without(self.share(max(0.0, saved_s)))


def kernels_of(
    profile: Profile, step_s: float, data_s: float, ceilings: Ceilings | None
) -> Kernels | None:
    """Of the first rank with a window; None where there is none."""
    for rank in profile.ranks:
        if rank.n_steps and rank.step_s:
            if rank.device == "cpu":
                return Kernels(rank, rank.step_s, ceilings)
            return Kernels(rank, step_s, ceilings, data_s)
    return None


def cost_of_shapes(
    kernels: Kernels | None, kind: KernelClass, limits: Thresholds
) -> tuple[Severity, float | None]:
    """How much sizes matter that fit no tile: the gain of products at a usual rate, if known.

    Where products reach that rate all the same, it is a note.
    """
    gain = kernels.gain_of_rate(kind, limits.healthy_sheet_share) if kernels else None
    if gain is not None and gain < without(limits.least_kernel_loss):
        return "note", None
    return "advice", gain


def is_update(op: TopOp) -> bool:
    """Whether an optimizer does it: in one kernel, in a few, or in place and outside of modules."""
    if "_fused_" in op.operator or "_foreach_" in op.operator or "multi_tensor" in op.name:
        return True
    is_outside = op.sites and not any(one.site.module or one.is_backward for one in op.sites)
    return bool(is_outside) and op.operator.endswith("_") and op.kind == "elementwise"


def lines(sites: Iterable[SiteShare]) -> str:
    """Where kernels come from, in a sentence; empty where that is not known."""
    told = []
    for one in sites:
        module = f" in module {one.site.module}" if one.site.module else ""
        told.append(f"{place(Site(one.site.file, one.site.line))}{module}")
    return ", ".join(list(dict.fromkeys(told))[:2])


def told(op: TopOp) -> str:
    """A kernel or an operator in a line of evidence."""
    where = lines(op.sites)
    return f"{op.operator or op.name}, {op.seconds * 1e3:.3g} ms a step" + (
        f" ({where})" if where else ""
    )
