"""What is alive at a time while a step runs on fake tensors, and what the whole step does.

What backward keeps is not the whole: a loss holds several copies of the logits for a moment, and
gradients come while activations go. So forward, loss and backward run once for each of two batches;
every operation has the bytes that are alive after it, and two batches tell which part of them grows
with the batch. Of all these moments only those matter that are the worst one for some batch.

The same two runs tell how many kernels a step launches, and what those that are bound by bandwidth
move for each sample, backward included.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hotlap.planner.eager import OWN_LAUNCHES, Traffic, is_own_batch_norm, traffic_of
from hotlap.planner.layers import Moment
from hotlap.planner.operations import (
    PRODUCTS,
    is_cast,
    is_kernel,
    is_product,
    place_of,
    reordered_bytes,
    tensors_in,
)
from hotlap.planner.tallies import ROUNDED_TO

if TYPE_CHECKING:
    import torch
    from torch import nn

BATCHES = (2, 4)


@dataclass(frozen=True, slots=True)
class Watched:
    """A step that ran on fake tensors."""

    moments: tuple[Moment, ...]
    """None where its operations depend on the batch."""
    traffic: Traffic
    """Of a sample: all but products and attention, forward and backward."""
    product_flops: float
    """Of a sample; of the gradients, those alone that are products of matrices themselves."""
    n_kernels: int
    n_compiled: int
    """Of these, what a compiler does not make part of another one."""


@dataclass(slots=True)
class _History:
    alive: list[int] = field(default_factory=list)
    """Bytes after each operation, but for storages that are the model's own."""
    traffic: Traffic = field(default_factory=Traffic)
    product_flops: float = 0.0
    n_kernels: int = 0
    n_compiled: int = 0


def watch(model: nn.Module, step: Callable[[int], None], reorders_images: bool = False) -> Watched:
    """A step that is run for a batch of this size."""
    small, large = BATCHES
    own = {place_of(tensor) for tensor in (*model.parameters(), *model.buffers())}
    before, after = (
        _history(lambda n=n: step(n), own, reorders_images)  # type: ignore[misc]
        for n in BATCHES
    )
    moments = []
    if len(before.alive) == len(after.alive):
        for few, many in zip(before.alive, after.alive, strict=True):
            per_sample = (many - few) / (large - small)
            moments.append(Moment(per_sample, few - per_sample * small))
    share = 1 / (large - small)
    return Watched(
        _outermost(moments),
        (after.traffic + before.traffic.times(-1)).times(share),
        (after.product_flops - before.product_flops) * share,
        after.n_kernels,
        after.n_compiled,
    )


def checkpointed(blocks: Sequence[nn.Module]) -> None:
    """Let blocks keep their inputs alone, for as long as this process lives."""
    from torch.utils.checkpoint import checkpoint

    def wrap(forward: Callable[..., Any]) -> Callable[..., Any]:
        def again(*args: Any, **kwargs: Any) -> Any:
            # Fake tensors have no random numbers to be kept.
            return checkpoint(
                forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs
            )

        return again

    for block in blocks:
        block.forward = wrap(block.forward)


def _history(run: Callable[[], None], own: Set[int], reorders_images: bool) -> _History:
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes: dict[int, int] = {}
    history = _History()
    alive = [0]

    def gone(place: int) -> None:
        alive[0] -= sizes.pop(place)

    def came(tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        place = place_of(tensor)
        if place not in sizes and place not in own:
            sizes[place] = -(-storage.nbytes() // ROUNDED_TO) * ROUNDED_TO
            alive[0] += sizes[place]
            weakref.finalize(storage, gone, place).atexit = False

    class Watcher(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made = func(*args, **(kwargs or {}))
            for tensor in tensors_in(made):
                came(tensor)
            name, inputs = func.overloadpacket.__name__, (args, kwargs or {})
            copies = reordered_bytes(name, inputs, made) if reorders_images else 0
            history.alive.append(alive[0] + copies)
            if is_kernel(func, made):
                history.n_kernels += 1 + OWN_LAUNCHES * is_own_batch_norm(name, inputs)
                history.n_compiled += not is_cast(name)
                if not is_product(name):
                    history.traffic += traffic_of(name, inputs, made)
                if name in PRODUCTS:
                    products = PRODUCTS[name](tensors_in(inputs), tensors_in(made), inputs, 1)
                    history.product_flops += sum(one.flops for one in products)
            return made

    with Watcher():
        run()
    return history


def _outermost(moments: Sequence[Moment]) -> tuple[Moment, ...]:
    """The upper hull: each is the worst moment for some batch, the largest batches last."""
    hull: list[Moment] = []
    for one in sorted(set(moments), key=lambda m: (m.per_sample_bytes, m.fixed_bytes)):
        while hull and hull[-1].fixed_bytes <= one.fixed_bytes:
            hull.pop()
        while len(hull) > 1 and _is_below(hull[-2], hull[-1], one):
            hull.pop()
        hull.append(one)
    return tuple(hull)


def _is_below(left: Moment, middle: Moment, right: Moment) -> bool:
    """Whether another is worse than the middle one at every batch."""
    run = right.per_sample_bytes - left.per_sample_bytes
    rise = right.fixed_bytes - left.fixed_bytes
    line = left.fixed_bytes + rise * (middle.per_sample_bytes - left.per_sample_bytes) / run
    return middle.fixed_bytes <= line
