"""DistributedDataParallel and the samplers of ranks, as the script uses them."""

from __future__ import annotations

import functools
import inspect
import sys
from typing import Any

from hotlap.doctor.inside.watch import Watch, site_of

ARGUMENTS = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph", "bucket_cap_mb")


def install(watch: Watch) -> None:
    """See both where they are made, and what is done with them."""
    _ddp(watch)
    _samplers(watch)


def _ddp(watch: Watch) -> None:
    kind = watch.torch.nn.parallel.DistributedDataParallel
    original, no_sync = kind.__init__, kind.no_sync
    signature = inspect.signature(original)
    seen: dict[str, Any] = {}
    watch.facts["ddp"] = lambda: seen or None

    @functools.wraps(original)
    def constructor(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        arguments = signature.bind(self, *args, **kwargs).arguments
        seen.update({name: arguments.get(name) for name in ARGUMENTS})
        seen.update(n_no_sync=0, site=site_of(sys._getframe(1)))
        if arguments.get("find_unused_parameters"):
            watch.try_to(_follow_order, watch, self.module, seen)

    @functools.wraps(no_sync)
    def counted(self: Any) -> Any:
        seen["n_no_sync"] = seen.get("n_no_sync", 0) + 1
        return no_sync(self)

    kind.__init__, kind.no_sync = constructor, counted


def _follow_order(watch: Watch, model: Any, seen: dict[str, Any]) -> None:
    """Which modules' gradients are ready when, in the first step; the last made should be first."""
    ready: dict[str, None] = {}
    seen["made"] = made = []
    handles = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            owner = name.rpartition(".")[0]
            made += [owner] if owner not in made else []
            note = functools.partial(_is_ready, ready, owner)
            handles.append(parameter.register_post_accumulate_grad_hook(note))

    def settle() -> None:
        seen["ready"] = list(ready)
        for handle in handles:
            handle.remove()

    watch.after_first_step.append(settle)


def _is_ready(ready: dict[str, None], owner: str, parameter: Any) -> None:
    ready.setdefault(owner)


def _samplers(watch: Watch) -> None:
    import torch.utils.data.distributed as samplers

    kind = samplers.DistributedSampler
    init, iterate, set_epoch = kind.__init__, kind.__iter__, kind.set_epoch
    seen: dict[str, Any] = {}
    watch.facts["sampler"] = lambda: seen or None

    @functools.wraps(init)
    def constructor(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if self.shuffle and not seen:
            seen.update(n_epochs=0, n_set=0, site=site_of(sys._getframe(1)))

    @functools.wraps(iterate)
    def iterated(self: Any) -> Any:
        if self.shuffle and seen:
            seen["n_epochs"] += 1
        return iterate(self)

    @functools.wraps(set_epoch)
    def set_(self: Any, epoch: int) -> None:
        if seen:
            seen["n_set"] += 1
        set_epoch(self, epoch)

    kind.__init__, kind.__iter__, kind.set_epoch = constructor, iterated, set_
