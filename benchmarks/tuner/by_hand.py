"""How fast ResNet-50, GPT-2 or the MLP trains when somebody who knows how tunes it by hand.

Runs the model and the data of the plain script with several combinations that are known to be good,
one after the other in one process, without hotlap. Of each: warm-up steps until compilers and
caches have settled, then blocks of steps for a few seconds, the clock read after a synchronise at
the end of each block. Its figure is all samples by all seconds; low and high are the slowest and
the fastest block. A combination that fails is a result too, with its reason.

Lines go to stderr as they come; stdout is one JSON document with every combination and the best.
A sample of GPT-2 is a sequence.

    python benchmarks/tuner/by_hand.py resnet50
    python benchmarks/tuner/by_hand.py mlp --only 'plain;graph of the step'
    python benchmarks/tuner/by_hand.py gpt2 --tiny --batch 2 --seconds 1      a CPU will do
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import gpt2_plain
import mlp_plain
import resnet50_plain
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Batches = list[tuple[Tensor, Tensor]]
Step = Callable[[Tensor, Tensor], Tensor]
"""Makes one update from inputs and targets; the loss."""

N_WARMUP = 12
N_BLOCKS = 8


@dataclass(frozen=True, slots=True)
class Combination:
    """What is changed against torch's defaults."""

    name: str
    tf32: bool = False
    bf16: bool = False
    channels_last: bool = False
    cudnn_benchmark: bool = False
    fused: bool = False
    compile_mode: str | None = None
    compile_loss: bool = False
    """The loss is compiled together with the model."""
    cuda_graph: bool = False
    """The whole step, update included, is one CUDA graph."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one combination."""

    name: str
    samples_per_s: float | None
    low: float | None
    high: float | None
    loss: float | None
    """After the last step: not a figure, only a sign that it trains."""
    warmup_s: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class Case:
    """A plain script and what is known to be good for it."""

    batch: int
    build: Callable[[bool], nn.Module]
    make_batches: Callable[[int, str, bool], Batches]
    optimizer: Callable[..., torch.optim.Optimizer]
    combinations: tuple[Combination, ...]


def _resnet50_combinations() -> tuple[Combination, ...]:
    tf32 = Combination("tf32, cudnn benchmark", tf32=True, cudnn_benchmark=True)
    bf16 = replace(tf32, name="bf16", bf16=True)
    last = replace(bf16, name="bf16, channels last, fused", channels_last=True, fused=True)
    compiled = replace(last, name="bf16, channels last, fused, compile", compile_mode="default")
    plain_order = replace(compiled, name="bf16, fused, compile", channels_last=False)
    graphs, tuned = "reduce-overhead", "max-autotune-no-cudagraphs"
    graphed = replace(compiled, name=f"{last.name}, compile {graphs}", compile_mode=graphs)
    searched = replace(compiled, name=f"{last.name}, compile {tuned}", compile_mode=tuned)
    return Combination("plain"), tf32, bf16, last, compiled, plain_order, graphed, searched


def _gpt2_combinations() -> tuple[Combination, ...]:
    tf32 = Combination("tf32", tf32=True)
    bf16 = replace(tf32, name="bf16", bf16=True)
    fused = replace(bf16, name="bf16, fused", fused=True)
    compiled = replace(fused, name="bf16, fused, compile", compile_mode="default")
    whole = replace(compiled, name="bf16, fused, compile with loss", compile_loss=True)
    tuned = "max-autotune-no-cudagraphs"
    searched = replace(whole, name=f"{whole.name} {tuned}", compile_mode=tuned)
    return Combination("plain"), tf32, bf16, fused, compiled, whole, searched


def _mlp_combinations() -> tuple[Combination, ...]:
    fused = Combination("tf32, fused", tf32=True, fused=True)
    compiled = replace(fused, name="compile", compile_mode="default")
    reduced = replace(fused, name="compile reduce-overhead", compile_mode="reduce-overhead")
    with_loss = replace(reduced, name="compile reduce-overhead with loss", compile_loss=True)
    graph = replace(fused, name="graph of the step", cuda_graph=True)
    both = replace(compiled, name="graph of the compiled step", compile_loss=True, cuda_graph=True)
    return Combination("plain"), fused, compiled, reduced, with_loss, graph, both


def _image_batches(batch: int, device: str, tiny: bool) -> Batches:
    return resnet50_plain.make_batches(batch, 32 if tiny else 224, device)


CASES = {
    "resnet50": Case(
        128,
        resnet50_plain.build_model,
        _image_batches,
        lambda *a, **k: torch.optim.SGD(*a, lr=0.1, momentum=0.9, **k),
        _resnet50_combinations(),
    ),
    "gpt2": Case(
        8,
        gpt2_plain.build_model,
        gpt2_plain.make_batches,
        lambda *a, **k: torch.optim.AdamW(*a, lr=3e-4, **k),
        _gpt2_combinations(),
    ),
    "mlp": Case(
        256,
        lambda tiny: mlp_plain.build_model(),
        lambda batch, device, tiny: mlp_plain.make_batches(batch, device),
        lambda *a, **k: torch.optim.SGD(*a, lr=0.01, momentum=0.9, **k),
        _mlp_combinations(),
    ),
}


def synchronise(device: str) -> None:
    """Wait until the device has done all that was asked of it."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def prepare(chosen: Combination) -> None:
    """Settings of the whole process, and nothing left of the last combination."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    torch.set_float32_matmul_precision("high" if chosen.tf32 else "highest")
    torch.backends.cudnn.benchmark = chosen.cudnn_benchmark


def loss_function(chosen: Combination, model: nn.Module, device: str) -> Step:
    """Forward and loss, compiled and in bf16 as chosen."""
    kind = device.partition(":")[0]
    mode = chosen.compile_mode

    def compute(inputs: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(kind, dtype=torch.bfloat16, enabled=chosen.bf16):
            output = called(inputs)
            return F.cross_entropy(output.view(-1, output.shape[-1]), targets.view(-1))

    if mode is None or chosen.compile_loss:
        called: Callable[[Tensor], Tensor] = model
    else:
        called = torch.compile(model, mode=mode)
    return torch.compile(compute, mode=mode) if mode and chosen.compile_loss else compute


def build_step(case: Case, chosen: Combination, batches: Batches, device: str, tiny: bool) -> Step:
    """The step of this combination, with a new model."""
    torch.manual_seed(0)
    model = case.build(tiny).to(device)
    if chosen.channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = case.optimizer(model.parameters(), **({"fused": True} if chosen.fused else {}))
    compute = loss_function(chosen, model, device)

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        if chosen.compile_mode == "reduce-overhead":  # its graphs may reuse the last step's memory
            torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad()
        loss = compute(inputs, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return as_graph(step, optimizer, batches) if chosen.cuda_graph else step


def as_graph(step: Step, optimizer: torch.optim.Optimizer, batches: Batches) -> Step:
    """The step recorded as a CUDA graph, which is replayed on copies of the data."""
    inputs, targets = (one.clone() for one in batches[0])
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # a recording must meet nothing for the first time
        for _ in range(N_WARMUP):
            step(inputs, targets)
    torch.cuda.current_stream().wait_stream(stream)
    # Without gradients the recorded backward writes new ones, and a replay does not add to them.
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(inputs, targets)

    def replay(new_inputs: Tensor, new_targets: Tensor) -> Tensor:
        inputs.copy_(new_inputs)
        targets.copy_(new_targets)
        graph.replay()
        return loss

    return replay


def seconds_for(step: Step, batches: Batches, n_steps: int, device: str) -> tuple[float, Tensor]:
    """Seconds that so many steps take, and the last loss."""
    synchronise(device)
    began = time.perf_counter()
    for i in range(n_steps):
        loss = step(*batches[i % len(batches)])
    synchronise(device)
    return time.perf_counter() - began, loss


def measure(
    case: Case, chosen: Combination, batches: Batches, seconds: float, device: str, tiny: bool
) -> Result:
    """Measure one combination."""
    if chosen.channels_last:
        batches = [(x.contiguous(memory_format=torch.channels_last), y) for x, y in batches]
    began = time.perf_counter()
    step = build_step(case, chosen, batches, device, tiny)
    seconds_for(step, batches, N_WARMUP, device)
    first_s, _ = seconds_for(step, batches, N_WARMUP, device)
    warmup_s = time.perf_counter() - began
    n_steps = max(2, math.ceil(seconds / N_BLOCKS / (first_s / N_WARMUP)))
    n_samples = n_steps * len(batches[0][0])
    blocks = []
    for _ in range(N_BLOCKS):
        block_s, loss = seconds_for(step, batches, n_steps, device)
        blocks.append(block_s)
    rate = N_BLOCKS * n_samples / sum(blocks)
    low, high = n_samples / max(blocks), n_samples / min(blocks)
    return Result(chosen.name, rate, low, high, float(loss), warmup_s, "")


def attempt(
    case: Case, chosen: Combination, batches: Batches, arguments: argparse.Namespace
) -> Result:
    """Measure it, or say why not."""
    device, tiny = arguments.device, arguments.tiny
    if chosen.cuda_graph and not device.startswith("cuda"):
        return failed(chosen, "needs a GPU")
    try:
        prepare(chosen)
        return measure(case, chosen, batches, arguments.seconds, device, tiny)
    except Exception as error:
        return failed(chosen, f"{type(error).__name__}: {error}"[:300])


def failed(chosen: Combination, reason: str) -> Result:
    """A combination without a figure."""
    return Result(chosen.name, None, None, None, None, None, reason)


def show(result: Result) -> None:
    """One line on stderr."""
    text = result.reason
    if result.samples_per_s is not None:
        text = (
            f"{result.samples_per_s:.1f} samples/s [{result.low:.1f}, {result.high:.1f}], "
            f"warm-up {result.warmup_s:.0f} s, loss {result.loss:.3f}"
        )
    print(f"  {result.name}: {text}", file=sys.stderr, flush=True)


def select(case: Case, text: str) -> list[Combination]:
    """All combinations, or those that are named."""
    known = {one.name: one for one in case.combinations}
    names = text.split(";") if text else list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"--only: '{unknown[0]}' is none of: {'; '.join(known)}")
    return [known[name] for name in names]


def main() -> None:
    """Measure every combination and print the document."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=tuple(CASES))
    parser.add_argument("--batch", type=int)
    parser.add_argument("--seconds", type=float, default=5.0, help="measured, a combination")
    parser.add_argument("--only", default="", metavar="A;B", help="combinations by name")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="small models")
    arguments = parser.parse_args()
    case = CASES[arguments.name]
    torch.manual_seed(0)
    batch = arguments.batch or case.batch
    batches = case.make_batches(batch, arguments.device, arguments.tiny)
    is_gpu = arguments.device.startswith("cuda")
    device_name = torch.cuda.get_device_name() if is_gpu else "CPU"
    print(f"{arguments.name}, batch {batch}, {device_name}", file=sys.stderr, flush=True)
    results = []
    for chosen in select(case, arguments.only):
        results.append(attempt(case, chosen, batches, arguments))
        show(results[-1])
    best = max(results, key=lambda one: one.samples_per_s or 0.0)
    document = {
        "name": arguments.name,
        "batch": batch,
        "device": device_name,
        "torch": torch.__version__,
        "combinations": [asdict(one) for one in results],
        "best": asdict(best),
    }
    print(json.dumps(document))


if __name__ == "__main__":
    main()
