"""What the optimizers written here share: a step over buckets of parameters, sharded or not.

A bucket holds the parameters of a group that lie alike: one device, one dtype and, where they are
DTensors, one mesh and one way of sharding. Within it the work is a few `torch._foreach` calls on
the local shards, and a norm over whole tensors is one reduction for all of them together. The state
is sharded like the parameters, so that a distributed checkpoint can be read with other ranks.

A step reads no value from the device: the host never waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate

from hotlap.errors import UsageError


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor: of a DTensor its shard, which shares its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@dataclass(frozen=True, slots=True)
class Bucket:
    """Parameters with gradients that lie alike."""

    mesh: DeviceMesh | None
    """None for parameters that are not sharded."""
    placements: tuple[Placement, ...]
    params: list[Tensor] = field(default_factory=list)
    """The model's own, the keys of the state."""

    @property
    def weights(self) -> list[Tensor]:
        """The local shards of the parameters; to change them is to change the model."""
        return [local(param) for param in self.params]

    @property
    def gradients(self) -> list[Tensor]:
        """The local shards of the gradients, cut as the parameters are."""
        return [local(self._placed_alike(param.grad)) for param in self.params]

    def _placed_alike(self, gradient: Tensor) -> Tensor:
        if self.mesh is None or gradient.placements == self.placements:
            return gradient
        return gradient.redistribute(self.mesh, self.placements)

    def whole_norms(self, shards: Sequence[Tensor]) -> Tensor:
        """The norms of whole tensors, given a shard of each: one vector, the same on all ranks."""
        # Half precision has too few digits for a ratio of norms, and overflows when squared.
        dtype = torch.promote_types(shards[0].dtype, torch.float32)
        norms = torch.stack(torch._foreach_norm(shards, 2, dtype))
        if self.mesh is None:
            return norms
        sums = [Replicate() if one.is_replicate() else Partial() for one in self.placements]
        squares = DTensor.from_local(norms.square(), self.mesh, sums, run_check=False)
        return squares.full_tensor().sqrt()

    def gather(self, param: Tensor, shard: Tensor) -> Tensor:
        """The whole tensor that a shard is a part of, laid out as a parameter of this bucket is."""
        if self.mesh is None:
            return shard
        whole = DTensor.from_local(
            shard,
            self.mesh,
            self.placements,
            run_check=False,
            shape=param.shape,
            stride=param.stride(),
        )
        return whole.full_tensor()

    def keep_shard(self, whole: Tensor) -> Tensor:
        """This rank's shard of a tensor that all ranks have; nothing is sent."""
        if self.mesh is None:
            return whole
        everywhere = [Replicate()] * self.mesh.ndim
        replicated = DTensor.from_local(whole, self.mesh, everywhere, run_check=False)
        return local(replicated.redistribute(self.mesh, self.placements))


def buckets(params: Iterable[Tensor]) -> list[Bucket]:
    """The parameters that have gradients, in buckets, in an order that is the same on all ranks."""
    found: dict[Any, Bucket] = {}
    for param in params:
        if param.grad is None:
            continue
        _refuse_complex_and_sparse(param)
        is_sharded = isinstance(param, DTensor)
        layout = (param.device_mesh, param.placements) if is_sharded else (None, ())
        bucket = found.setdefault((param.device, param.dtype, *layout), Bucket(*layout))
        bucket.params.append(param)
    return list(found.values())


def _refuse_complex_and_sparse(param: Tensor) -> None:
    shape = tuple(param.shape)
    if param.is_complex():
        raise UsageError(f"a parameter of shape {shape} is complex; only real ones can be trained")
    if param.grad.layout != torch.strided:
        raise UsageError(
            f"the gradient of a parameter of shape {shape} is sparse; it has to be dense "
            "(an embedding without sparse=True)"
        )


class BucketOptimizer(torch.optim.Optimizer):
    """An optimizer that says how a bucket is updated; the rest is here."""

    def update(self, group: dict[str, Any], bucket: Bucket) -> None:
        """Move the weights of a bucket by the settings of its group."""
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have gradients; returns the closure's loss."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for bucket in buckets(group["params"]):
                self.update(group, bucket)
        return loss

    def state_of(self, bucket: Bucket, name: str) -> list[Tensor]:
        """The local shards of a tensor of state for each parameter; zeros at first."""
        for param in bucket.params:
            if name not in self.state[param]:
                self.state[param][name] = torch.zeros_like(
                    param, memory_format=torch.preserve_format
                )
        return [local(self.state[param][name]) for param in bucket.params]

    def count_steps(self, bucket: Bucket) -> list[float]:
        """How many steps each parameter has made, with this one."""
        for param in bucket.params:
            # On the CPU, as torch's Adam keeps it: there it can be read without waiting.
            self.state[param].setdefault("step", torch.tensor(0.0, dtype=torch.float32)).add_(1)
        return [float(self.state[param]["step"]) for param in bucket.params]


def one_where_zero(rates: Tensor, *norms: Tensor) -> Tensor:
    """Rates of layers; 1 where a norm is 0, since zeros say nothing about the scale of a layer."""
    return torch.where(torch.stack(norms).gt(0).all(0), rates, 1.0)
