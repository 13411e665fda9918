"""The window with stacks: which lines kernels and operators come from, and which synchronise."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from hotlap.chronometer.profile.costs import Product, product_of
from hotlap.chronometer.profile.operators import Operator
from hotlap.chronometer.profile.trace import Event, Trace
from hotlap.chronometer.profile.work import Window, find_window
from hotlap.records.profile import Site, SiteShare, Sync

N_SITES = 3
SYNC_CALLS = (
    "cudaDeviceSynchronize",
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cudaMemcpy",
    "hipDeviceSynchronize",
    "hipStreamSynchronize",
    "hipEventSynchronize",
    "hipMemcpy",
)
SYNC_OPERATORS = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero")
"""On a CPU nothing waits; these are what will wait on a device."""
WAITING = (*SYNC_OPERATORS, "aten::_to_copy", "aten::copy_", "aten::unique", "aten::masked_select")


class Lines:
    """What a trace with stacks knows."""

    def __init__(self, trace: Trace, window: Window) -> None:
        self._trace, self._window = trace, window
        self._sites: list[dict[str, Any]] = trace.sites.get("sites", [])
        operators = trace.sites.get("operators", {})
        self._of_operator: dict[str, int] = {str(key): place for key, place in operators.items()}
        self._of_call: dict[str, int] = trace.sites.get("calls", {})
        self._by_work: dict[tuple[str, str], dict[int, float]] = defaultdict(
            lambda: defaultdict(float)
        )
        for work in window.works:
            place = self._place(work.operator)
            if place is not None:
                operator = work.operator.name if work.operator else ""
                self._by_work[work.name, operator][place] += work.us

    @staticmethod
    def of(trace: Trace) -> Lines | None:
        """None where the window did not come to its end."""
        window = find_window(trace)
        return Lines(trace, window) if window else None

    @property
    def n_steps(self) -> int:
        return self._window.n_steps

    def sites_of_work(self, name: str, operator: str) -> tuple[SiteShare, ...]:
        """Where the works of a name come from, the costliest first."""
        return self._shares(self._by_work.get((name, operator), {}))

    def sites_of_product(self, product: Product) -> tuple[SiteShare, ...]:
        """Where the matrix products of a shape come from."""
        found: dict[int, float] = defaultdict(float)
        for work in self._window.works:
            around = work.operator.ancestors() if work.operator else ()
            if any(product_of(one) == product for one in around):
                place = self._place(work.operator)
                if place is not None:
                    found[place] += work.us
        return self._shares(found)

    def _shares(self, us: dict[int, float]) -> tuple[SiteShare, ...]:
        total = sum(us.values())
        merged: dict[tuple[Site, bool], float] = defaultdict(float)
        for place, one in us.items():
            site = self._site(place)
            if site is not None:
                merged[site, bool(self._sites[place].get("is_backward"))] += one
        rows = sorted(merged.items(), key=lambda item: -item[1])[:N_SITES]
        return tuple(
            SiteShare(site, one / total if total else 0.0, is_backward)
            for (site, is_backward), one in rows
        )

    def _place(self, operator: Operator | None) -> int | None:
        """The site of the innermost operator that has one."""
        for one in operator.ancestors() if operator else ():
            place = self._of_operator.get(str(one.external_id))
            if place is not None:
                return place
        return None

    def _site(self, place: int | None) -> Site | None:
        if place is None or not self._sites[place]["file"]:
            return None
        one = self._sites[place]
        return Site(one["file"], one["line"], one["function"], one["module"])

    def _is_own(self, place: int | None) -> bool:
        """Whether it is the chronometer that makes the call."""
        return place is not None and self._sites[place]["owner"] == "hotlap"

    def syncs(self) -> tuple[Sync, ...]:
        """Every place that synchronises, the longest first."""
        found = self._device_syncs() if self._window.is_device else self._operator_syncs()
        groups: dict[tuple[str, Site | None], list[float]] = defaultdict(list)
        for call, place, us in found:
            if not self._is_own(place):
                groups[call, self._site(place)].append(us)
        n = self._window.n_steps
        rows = [
            Sync(call, site, len(us) / n, sum(us) / 1e6 / n) for (call, site), us in groups.items()
        ]
        return tuple(sorted(rows, key=lambda row: (-row.seconds, -row.calls)))

    def _operator_syncs(self) -> Iterable[tuple[str, int | None, float]]:
        """But for those of an optimizer's step: it reads counters that stay on the host."""
        updates = [
            event
            for event in self._trace.events
            if event.category == "user_annotation" and event.name.startswith("Optimizer.step")
        ]
        for one in self._window.operators:
            inside = {parent.name for parent in one.ancestors() if parent is not one}
            if one.name not in SYNC_OPERATORS or inside.intersection(SYNC_OPERATORS):
                continue
            if not any(update.start <= one.event.start < update.end for update in updates):
                yield one.name, self._place(one), one.event.duration

    def _device_syncs(self) -> Iterable[tuple[str, int | None, float]]:
        """One a call of the user's, though it may be a copy and a wait."""
        by_id = {one.external_id: one for one in self._window.operators}
        to_host = {
            event.args.get("correlation")
            for event in self._trace.events
            if event.category == "gpu_memcpy" and "DtoH" in event.name and "Pageable" in event.name
        }
        found: dict[int, tuple[str, int | None, float]] = {}
        begin, end = self._trace.marks[-1 - self._window.n_steps], self._trace.marks[-1]
        for event in self._trace.events:
            if not _waits(event, to_host) or not begin <= event.start < end:
                continue
            operator = by_id.get(event.args.get("External id"))
            user_call = _user_call(operator)
            key = id(user_call or event)
            place = self._place(operator)
            if place is None:
                place = self._of_call.get(str(event.args.get("correlation")))
            name = user_call.name if user_call else event.name
            waited = found[key][2] if key in found else 0.0
            found[key] = (name, place, waited + event.duration)
        return found.values()


def _waits(event: Event, to_host: set[Any]) -> bool:
    """A copy to pageable host memory waits although its call is the asynchronous one."""
    if event.category != "cuda_runtime":
        return False
    if event.name in SYNC_CALLS:
        return True
    return event.name.endswith("MemcpyAsync") and event.args.get("correlation") in to_host


def _user_call(operator: Operator | None) -> Operator | None:
    """The outermost operator around a wait that waits by its nature."""
    around = list(operator.ancestors()) if operator else []
    return next((one for one in reversed(around) if one.name in WAITING), None)
