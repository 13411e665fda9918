"""Trains small models with one lever after the other in one process, and prints what was seen.

Runs under `hotlap time`, which has this file's `install` called with the session: the levers work
on the real hooks, and each is undone before the next.
"""

from __future__ import annotations

import copy
import json
import pickle
import sys
import tempfile
from pathlib import Path
from typing import Any

SESSIONS: list[Any] = []
KEPT: list[Any] = []
"""Models: the session knows them by their ids, which must not come back."""
N_STEPS = 4


def install(torch: Any, session: Any) -> None:
    """Called at the end of `import torch`, as levers are."""
    SESSIONS.append(session)


def build(torch: Any) -> Any:
    """A network with all that the levers look for."""
    nn = torch.nn

    class Block(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
            self.drop = nn.Dropout(0.1)

        def forward(self, x: Any) -> Any:
            return x + self.drop(torch.relu(self.norm(self.conv(x))))

    # Found by pickle in this module, under these names.
    globals()["Block"] = Block
    Block.__qualname__ = "Block"
    torch.manual_seed(0)
    blocks = nn.Sequential(Block(), Block())
    parts = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), blocks, *parts)
    KEPT.append(model)
    return model


def train(torch: Any, model: Any) -> dict[str, Any]:
    """A loop that gathers two gradients and clips them; losses, gradients and what came out."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(16, 3, 8, 8, generator=draw)
    labels = torch.randint(4, (16,), generator=draw)
    losses, norms = [], []
    for _ in range(N_STEPS):
        optimizer.zero_grad()
        for half in (slice(0, 8), slice(8, 16)):
            result = model(images[half])
            loss = torch.nn.functional.cross_entropy(result, labels[half]) / 2
            loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
        optimizer.step()
        losses.append(loss.item())
    group = optimizer.param_groups[0]
    kept = [one for state in optimizer.state.values() for one in state.values()]
    tensors = [one for one in (*model.parameters(), *kept) if one.dim()]
    return {
        "kept in": sorted({str(one.dtype) for one in tensors}),
        "gradients in": sorted({str(one.grad.dtype) for one in model.parameters()}),
        "losses": losses,
        "norms": norms,
        "dtype": str(result.dtype),
        "statistics": [float(b.double().sum()) for b in model.buffers()],
        "fused": group["fused"],
        "foreach": group["foreach"],
    }


class Probe:
    """Applies a lever, has something looked at, undoes it."""

    def __init__(self, torch: Any) -> None:
        from hotlap.levers import LEVERS
        from hotlap.levers.common.process import Process

        self.torch, self.events = torch, []  # type: ignore[var-annotated]
        self.process = Process(torch, SESSIONS[0], lambda **event: self.events.append(event))
        self.process.watch()
        self.levers = {lever.name: lever for lever in LEVERS}
        self.seen: dict[str, Any] = {}

    def __call__(self, case: str, look: Any, **levers: str) -> None:
        """One case: what `look()` returns and what the levers said."""
        self.events.clear()
        for name, value in levers.items():
            self.process.apply(self.levers[name], value)
        try:
            found = look()
        finally:
            self.process.undo()
        done = {event["done"]: event["what"] for event in self.events if "done" in event}
        failed = {event["failed"]: event["why"] for event in self.events if "failed" in event}
        self.seen[case] = {**found, "done": done, "failed": failed}


def main() -> None:
    """All cases."""
    import torch

    torch.set_num_threads(1)
    probe = Probe(torch)
    _network(torch, probe)
    _overflow(torch, probe)
    _flags(torch, probe)
    _ddp(torch, probe)
    _compile(torch, probe)
    probe.seen["fp8 product"] = _fp8(torch)
    _transformers(torch, probe)
    print(json.dumps(probe.seen))


def _network(torch: Any, probe: Probe) -> None:
    cases = (
        *({}, {"bf16": "autocast"}, {"fp16": "autocast"}, {"channels_last": "on"}),
        {"pure_bf16": "on"},
        *({"four_channels": "on"}, {"checkpointing": "blocks"}, {"fused_optimizer": "on"}),
        *({"foreach_optimizer": "on"}, {"fp8": "per-tensor"}, {"longest_input": "0.5"}),
    )
    for levers in cases:
        model = build(torch)
        found: dict[str, Any] = {}

        def look(model: Any = model, found: dict[str, Any] = found) -> dict[str, Any]:
            found.update(train(torch, model), kinds=_kinds(model), strides=model[0].weight.stride())
            copied = pickle.loads(pickle.dumps(copy.deepcopy(model)))
            found["copied"] = _kinds(copied)
            with torch.no_grad():
                found["validation"] = str(model(torch.randn(1, 3, 8, 8)).dtype)
            return found

        name = next(iter(levers), "plain")
        probe(name, look, **levers)
        found["after"] = {"kinds": _kinds(model), "strides": model[0].weight.stride()}
        found["after"]["dtype"] = str(model(torch.randn(2, 3, 8, 8)).dtype)
        probe.seen[name] |= found


def _kinds(model: Any) -> list[int]:
    """The classes of some parts, as numbers that can be compared within this process."""
    return [id(type(part)) for part in (model[0], model[1][0], model[1][1])]


def _overflow(torch: Any, probe: Probe) -> None:
    def look() -> dict[str, Any]:
        model = torch.nn.Linear(4, 1)
        KEPT.append(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9, weight_decay=0.1)
        changed = []
        for factor in (1e30, 1.0, 1.0):
            before = model.weight.detach().clone()
            optimizer.zero_grad()
            (model(torch.ones(2, 4)).mean() * factor).backward()
            optimizer.step()
            changed.append(not torch.equal(before, model.weight))
        return {"changed": changed}

    backward, make = torch.autograd.backward, torch.optim.Optimizer.__init__
    probe("overflow", look, fp16="autocast")
    restored = [backward is torch.autograd.backward, make is torch.optim.Optimizer.__init__]
    probe.seen["overflow"]["restored"] = restored


def _flags(torch: Any, probe: Probe) -> None:
    def look() -> dict[str, Any]:
        return {"order": torch._C._get_sdp_priority_order(), "benchmark": cudnn.benchmark}

    cudnn = torch.backends.cudnn
    before = look()
    probe("attention", look, attention="cudnn", cudnn_benchmark="on")
    probe.seen["attention"]["restored"] = look() == before


def _ddp(torch: Any, probe: Probe) -> None:
    distributed = torch.distributed
    with tempfile.TemporaryDirectory() as folder:
        place = (Path(folder) / "store").as_uri()
        distributed.init_process_group("gloo", init_method=place, rank=0, world_size=1)
        kind = torch.nn.parallel.DistributedDataParallel
        before = kind.__init__
        for value in ("bucket_view", "static_graph", "bucket_50mb"):

            def look() -> dict[str, Any]:
                model = kind(build(torch))
                found = {"losses": train(torch, model)["losses"]}
                kept = kind(build(torch), gradient_as_bucket_view=False, static_graph=False)
                return {
                    **found,
                    "view": model.gradient_as_bucket_view,
                    "static": model.static_graph,
                    "bucket_bytes": model.bucket_bytes_cap,
                    "kept": [kept.gradient_as_bucket_view, kept.static_graph],
                }

            probe(value, look, ddp=value)
            probe.seen[value]["restored"] = kind.__init__ is before
        # Without dropout, whose numbers go to other pixels in another order of memory.
        probe("channels last in ddp", lambda: _in_ddp(torch, kind), channels_last="on")
        probe("pure bf16 in ddp", lambda: _in_ddp(torch, kind), pure_bf16="on")
        probe("plain in ddp", lambda: _in_ddp(torch, kind))
        _graphs(torch, probe)
        distributed.destroy_process_group()


def _in_ddp(torch: Any, kind: Any) -> dict[str, Any]:
    model = build(torch)
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    wrapped = kind(model)
    return {**train(torch, wrapped), "strides": model[0].weight.stride()}


def _graphs(torch: Any, probe: Probe) -> None:
    """How many graphs dynamo makes of a root, by the frame that the lever puts around it."""
    from hotlap.levers.compile import _frame_around

    sequence = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    wrapped = torch.nn.parallel.DistributedDataParallel(sequence)
    for name, root in (("sequential", sequence), ("ddp", wrapped)):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        sequence._compiled_call_impl = torch.compile(_frame_around(sequence), backend="eager")
        root(torch.randn(2, 4)).sum().backward()
        probe.seen[f"graphs of {name}"] = dict(torch._dynamo.utils.counters["stats"])
        sequence._compiled_call_impl = None


def _compile(torch: Any, probe: Probe) -> None:
    nn = torch.nn

    def look() -> dict[str, Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        KEPT.append(model)
        torch._dynamo.utils.counters.clear()
        result = model(torch.ones(2, 4))
        result.sum().backward()
        is_compiled = model._compiled_call_impl is not None
        n_graphs = torch._dynamo.utils.counters["stats"].get("unique_graphs", 0)
        return {"result": result.tolist(), "is_compiled": is_compiled, "n_graphs": n_graphs}

    probe("eager", look)
    probe("compile", look, compile="default")
    probe.seen["compile"]["restored"] = KEPT[-1]._compiled_call_impl is None

    def look_again() -> dict[str, Any]:
        model = nn.Linear(4, 1)
        model.compile(backend="eager")
        KEPT.append(model)
        before = model._compiled_call_impl
        model(torch.ones(2, 4))
        return {"is_left_alone": model._compiled_call_impl is before}

    probe("compiled by the script", look_again, compile="default")


def _fp8(torch: Any) -> dict[str, Any]:
    """How far result and gradients of one layer lie from fp32, alone and in a compiled program."""
    from hotlap.levers.common.fp8 import linear, make_product
    from hotlap.levers.compile import _frame_around

    layer, x = torch.nn.Linear(64, 48), torch.randn(4, 8, 64, requires_grad=True)
    leaves, product = (x, *layer.parameters()), make_product(torch)

    class Fp8(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return linear(torch, product, torch.nn.Linear.forward, layer, x)

    def run(call: Any) -> list[Any]:
        result = call(x)
        return [result, *torch.autograd.grad(result.square().sum(), leaves)]

    def distances(call: Any) -> list[float]:
        pairs = zip(run(call), run(layer), strict=True)
        return [float((a - b).norm() / b.norm()) for a, b in pairs]

    try:
        compiled = torch.compile(_frame_around(Fp8()), backend="aot_eager", fullgraph=True)
        return {"alone": distances(Fp8()), "compiled": distances(compiled)}
    except RuntimeError as error:  # oneDNN has no product of fp8 for this CPU
        return {"missing": str(error)}


def _transformers(torch: Any, probe: Probe) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    def look() -> dict[str, Any]:
        torch.manual_seed(0)
        model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2))
        KEPT.append(model)
        tokens = torch.arange(16).reshape(2, 8)
        result = model(input_ids=tokens, labels=tokens)
        result.loss.backward()
        kind, dtype = type(result).__name__, str(result.logits.dtype)
        gradient = float(model.transformer.wte.weight.grad.norm())
        switch = model.is_gradient_checkpointing
        found = {"loss": result.loss.item(), "kind": kind, "dtype": dtype, "gradient": gradient}
        return {**found, "switch": switch, "keys": list(result.keys())}

    probe("gpt2", look)
    probe("gpt2 in bf16", look, bf16="autocast")
    probe("gpt2 in pure bf16", look, pure_bf16="on")
    probe("gpt2 checkpointed", look, checkpointing="blocks")
    probe.seen["gpt2 checkpointed"]["restored"] = not KEPT[-1].is_gradient_checkpointing


if __name__ == "__main__":
    # The session was given to this file as a module, not as the script.
    SESSIONS += __import__("probe_model_levers").SESSIONS
    sys.modules["probe_model_levers"] = sys.modules["__main__"]
    main()
