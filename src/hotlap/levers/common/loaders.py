"""What the levers of data loading have in common: when they pay, and how their edits look."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hotlap.levers.common.edits import Edit, change_arguments, tell
from hotlap.levers.common.lever import Decision
from hotlap.levers.common.workload import Seen, Workload

MIN_SHARE = 0.01
"""Of the step: where less of it waits for data, nothing of data loading can be gained."""


def waits_for_data(workload: Workload) -> Decision:
    """Whether there are DataLoaders, and whether the step waits for them."""
    if not workload.loaders:
        return Decision(False, "the script makes no DataLoader")
    share = workload.share("data")
    if workload.phases_s and share < MIN_SHARE:
        return Decision(False, f"only {share:.1%} of the step waits for data")
    return Decision(True, f"{share:.0%} of the step waits for data")


def waits_for_copies(workload: Workload) -> Decision:
    """Whether batches of DataLoaders go to a GPU, and whether the step waits for them."""
    if workload.device != "cuda":
        return Decision(False, "the model is not on a GPU, so that nothing is copied to one")
    if not workload.loaders:
        return Decision(False, "the script makes no DataLoader")
    share = workload.share("transfer", "data")
    if workload.phases_s and share < MIN_SHARE:
        return Decision(False, f"only {share:.1%} of the step waits for data or its copy")
    return Decision(True, f"{share:.0%} of the step waits for data and its copy")


def saved_of_copies(workload: Workload, *, transfer: float, data: float) -> float:
    """What a lever saves of the time that batches take, given its part of either phase."""
    transfer_share, data_share = workload.share("transfer"), workload.share("data")
    both = transfer_share + data_share
    return (transfer * transfer_share + data * data_share) / both if both else 0.0


def with_workers(workload: Workload, waits: Decision) -> Decision:
    """Where the step waits: whether there are workers, or could be with the lever `workers`."""
    if not waits.yes or any(loader.facts.get("num_workers") for loader in workload.loaders):
        return waits
    if all(loader.facts.get("is_iterable") for loader in workload.loaders):
        return Decision(False, "no loader has workers, and iterable datasets are given none")
    return Decision(True, "no loader has workers: of use together with the lever 'workers' only")


def only_with_workers(workload: Workload) -> tuple[str, ...]:
    """The lever that has to come first where no loader has workers yet."""
    has_workers = any(loader.facts.get("num_workers") for loader in workload.loaders)
    return () if has_workers else ("workers",)


def given_workers(workload: Workload, n_workers: int) -> Workload:
    """The workload with the workers that the lever `workers` gives its loaders."""

    def given(loader: Seen) -> Seen:
        n_before = loader.facts.get("num_workers") or 0
        if loader.facts.get("is_iterable") or n_before >= n_workers:
            return loader
        return replace(loader, facts={**loader.facts, "num_workers": n_workers})

    return replace(workload, loaders=tuple(map(given, workload.loaders)))


def edit_those_with_workers(
    workload: Workload, loaders: Iterable[Seen], name: str, value: str
) -> tuple[Edit, ...]:
    """A keyword that torch refuses where there are no workers, for those of the loaders with some.

    Where one line makes loaders of both kinds, it is told in words.
    """
    without = {one.site for one in workload.loaders if not one.facts.get("num_workers")}
    sites = dict.fromkeys(one.site for one in loaders if one.facts.get("num_workers"))
    words = f"DataLoader(..., {name}={value}) for the loaders with workers alone"
    return tuple(
        tell(site, words)
        if site in without
        else change_arguments(site, "DataLoader", **{name: value})
        for site in sites
    )


def edit_loaders(loaders: tuple[Seen, ...], **arguments: str) -> tuple[Edit, ...]:
    """The same keyword arguments for the DataLoader on each of these lines."""
    sites = dict.fromkeys(loader.site for loader in loaders)
    return tuple(change_arguments(site, "DataLoader", **arguments) for site in sites)
