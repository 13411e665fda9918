"""Run by torchrun on gloo: what ranks of FSDP, tensor parallel and a pipeline hold and send.

torchrun --nproc-per-node 2 measured_ranks.py fsdp|tensor|pipeline|interleaved|norms RESULT
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from hotlap.distributed.leave import leave
from hotlap.distributed.mesh import MeshSettings, lay_out
from hotlap.distributed.parallelise import cut_matrices, shard
from hotlap.distributed.pipeline import Pipeline, cut
from hotlap.models.gpt import GPT

SIZES = {"n_layers": 4, "n_heads": 4, "width": 64, "vocab_size": 512, "context": 32}
BATCH = 8


class Collectives(TorchDispatchMode):
    """Counts them by name, of both of torch's interfaces."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        space, _, name = func._schema.name.partition("::")
        if space in ("c10d", "_c10d_functional") and not name.startswith(("wait", "_wrap")):
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


def local_bytes(tensors: Any) -> int:
    """On this rank."""
    parts = [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
    return sum(part.numel() * part.element_size() for part in parts)


def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
    return F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def trained(model: nn.Module) -> dict[str, Any]:
    """One step: what is held after it, what was sent during it."""
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tokens = torch.randint(0, SIZES["vocab_size"], (BATCH // 2, SIZES["context"]))
    with Collectives() as sent:
        loss_of(model, tokens).backward()
    optimizer.step()
    states = [v for state in optimizer.state.values() for v in state.values() if v.dim()]
    return {
        "weights": local_bytes(model.parameters()),
        "gradients": local_bytes([p.grad for p in model.parameters()]),
        "optimizer": local_bytes(states),
        "sent": dict(sent.counts),
    }


def fsdp() -> dict[str, Any]:
    model = GPT(**SIZES)
    return trained(shard(model, init_device_mesh("cpu", (dist.get_world_size(),))))


def tensor() -> dict[str, Any]:
    model = GPT(**SIZES)
    cut_matrices(model, init_device_mesh("cpu", (dist.get_world_size(),)), False)
    block = local_bytes(model.blocks()[0].parameters())
    return trained(model) | {"block": block}


def norms() -> dict[str, Any]:
    """Bytes of a number that a block's norm is given, under autocast and as FSDP casts."""
    tokens = torch.randint(0, SIZES["vocab_size"], (1, SIZES["context"]))
    found = {}
    for how in ("autocast", "sharded"):
        model: Any = GPT(**SIZES)
        if how == "sharded":
            policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
            for part in (*model.blocks(), model):
                fully_shard(part, mp_policy=policy)
        seen: list[int] = []
        norm = next(m for m in model.blocks()[1].modules() if isinstance(m, nn.LayerNorm))
        norm.register_forward_pre_hook(lambda _, given, to=seen: to.append(given[0].element_size()))
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
            model(tokens)
        found[how] = seen
    return found


def pipeline(schedule: str = "1f1b") -> dict[str, Any]:
    """The bytes of the stage, and the most micro-batches between forward and backward."""
    n = dist.get_world_size()
    settings = MeshSettings(pp=n, micro_batches=BATCH, schedule=schedule)
    layout = lay_out(settings, dist.get_rank(), n)
    model = GPT(**SIZES, tied=False)
    stages = cut(model, layout)
    held = {"now": 0, "most": 0}

    def went_back(gradient: Tensor) -> Tensor:
        held["now"] -= 1
        return gradient

    def came_in(module: nn.Module, args: Any, output: Tensor) -> None:
        if output.requires_grad and torch.is_grad_enabled():
            held["now"] += 1
            held["most"] = max(held.values())
            output.register_hook(went_back)

    mesh = init_device_mesh("cpu", (n,), mesh_dim_names=("pp",))
    line = Pipeline(stages, layout, mesh, torch.device("cpu"))
    tokens = torch.randint(0, SIZES["vocab_size"], (BATCH, SIZES["context"]))
    loss = lambda out, target: F.cross_entropy(out.flatten(0, 1), target.flatten())  # noqa: E731
    line.step(tokens, tokens, loss)  # the first step learns the shapes by running the stages
    for stage in stages.values():
        stage.register_forward_hook(came_in)
    held.update(now=0, most=0)
    with Collectives() as sent:
        line.step(tokens, tokens, loss)
    return {
        "weights": sum(local_bytes(stage.parameters()) for stage in stages.values()),
        "in_flight": held["most"] / len(stages),
        "sent": dict(sent.counts),
    }


def main() -> None:
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    interleaved = partial(pipeline, "interleaved")
    kinds = {"fsdp": fsdp, "tensor": tensor, "norms": norms}
    mine = (kinds | {"pipeline": pipeline, "interleaved": interleaved})[sys.argv[1]]()
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(everyone))
    dist.barrier()
    dist.destroy_process_group()
    leave(0)


if __name__ == "__main__":
    main()
