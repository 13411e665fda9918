"""ZeRO-1: each replica keeps the optimizer state of its own part of every parameter.

Weights and gradients stay whole on all ranks, as DDP has them. The optimizer is given distributed
tensors instead, whose shards are views of the weights: it changes its rows of them in place, and
then ranks send one another what each has changed. All that knows sharded parameters, optimizers,
clipping, the gradient scaler and checkpoints, works on them as it does under FSDP.

torch.distributed.optim.ZeroRedundancyOptimizer (torch 2.13) is not used: it gives whole parameters
to ranks, so that the largest one decides the memory; its state can be kept only by collecting all
of it on one rank; and it makes the optimizer itself, from a class that has to know no groups.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from hotlap.distributed.exchanges import ALL_GATHER

PARCEL_ELEMENTS = 1 << 24
"""Weights are sent together up to so many, which bounds the memory that is needed for it."""

Parcel = list[nn.Parameter]


class ShardedUpdate:
    """A model's parameters as the optimizer of one replica sees them.

    take_gradients()      after the last backward
    optimizer.step()      over the parameters of `model`
    share_weights()       the whole model has them
    """

    def __init__(self, model: nn.Module, mesh: DeviceMesh) -> None:
        """`mesh` has one dimension: the replicas."""
        self._mesh = mesh
        # A scalar cannot be cut: its optimizer state is kept by all.
        cut = [one for one in model.parameters() if one.dim() and one.requires_grad]
        self._shards = {whole: self._shard_of(whole) for whole in cut}
        self._parcels = list(_parcels(cut))
        self.model = _with_parameters(model, self._shards)
        """The same modules with the shards in them: it is not called, it has the names."""

    def take_gradients(self) -> None:
        """Give each shard its part of the gradient, which is the replicas' mean already.

        The whole parameters have none after it: what clears the optimizer's clears all.
        """
        for whole, shard in self._shards.items():
            shard.grad = None if whole.grad is None else self._distributed(whole.grad)
            whole.grad = None

    @torch.no_grad()
    def share_weights(self) -> None:
        """Send what this rank has changed, and take what the others have."""
        for parcel in self._parcels:
            parts = [[self._part(whole, rank) for whole in parcel] for rank in self._ranks]
            n_most = max(sum(one.numel() for one in of_rank) for of_rank in parts)
            sent = parcel[0].new_zeros(n_most)
            own = torch.cat([one.flatten() for one in parts[self._mesh.get_local_rank()]])
            sent[: own.numel()] = own
            received = sent.new_empty(len(parts), n_most)
            ALL_GATHER(received.view(-1), sent, group=self._mesh.get_group())
            for of_rank, values in zip(parts, received, strict=True):
                pieces = values[: sum(one.numel() for one in of_rank)].split(
                    [one.numel() for one in of_rank]
                )
                for part, piece in zip(of_rank, pieces, strict=True):
                    part.copy_(piece.view(part.shape))

    @property
    def _ranks(self) -> range:
        return range(self._mesh.size())

    def _shard_of(self, whole: nn.Parameter) -> nn.Parameter:
        return nn.Parameter(self._distributed(whole.detach()))

    def _distributed(self, whole: Tensor) -> DTensor:
        """This rank's part, in the same memory, as a part of a distributed tensor."""
        return DTensor.from_local(
            self._part(whole, self._mesh.get_local_rank()),
            self._mesh,
            [Shard(0)],
            run_check=False,
            shape=whole.shape,
            stride=whole.stride(),
        )

    def _part(self, whole: Tensor, rank: int) -> Tensor:
        """The rows of a rank, as torch cuts them: the last ranks may have fewer, or none."""
        chunks = whole.detach().chunk(self._mesh.size())
        return chunks[rank] if rank < len(chunks) else whole.detach()[:0]


def _parcels(parameters: Iterable[nn.Parameter]) -> Iterator[Parcel]:
    """Parameters of one kind that are sent together, in the order they have on all ranks."""
    by_kind: dict[tuple[torch.device, torch.dtype], Parcel] = {}
    for one in parameters:
        by_kind.setdefault((one.device, one.dtype), []).append(one)
    for alike in by_kind.values():
        parcel: Parcel = []
        for one in alike:
            if parcel and sum(map(torch.numel, parcel)) + one.numel() > PARCEL_ELEMENTS:
                yield parcel
                parcel = []
            parcel.append(one)
        yield parcel


def _with_parameters(model: nn.Module, others: dict[nn.Parameter, nn.Parameter]) -> nn.Module:
    """A copy of the modules with other parameters in it, and all tensors else the same."""
    kept = (*model.parameters(), *model.buffers())
    # What deepcopy finds in its memo it takes as it is.
    memo = {id(one): others.get(one, one) if isinstance(one, nn.Parameter) else one for one in kept}
    return copy.deepcopy(model, memo)
