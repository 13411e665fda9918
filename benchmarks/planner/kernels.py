"""Where the GPU's time of a training goes, by kind of kernel, beside what the planner has for it.

    PYTHONPATH=src python3 benchmarks/planner/kernels.py --set 2 --only gpt2_124m --to kernels.jsonl
    PYTHONPATH=src python3 benchmarks/planner/kernels.py --compare kernels.jsonl

The first runs some steps of the trainings of `h200.py` under torch's profiler (a few seconds each,
a minute where one is compiled) and keeps kernels and operators with their shapes, a line a
training. The second makes a table of it, without a GPU: products and convolutions, attention, and
all else, which is bound by bandwidth. What single kinds of kernels reach of the bandwidth, which
`hotlap.planner.eager` has a number for each of, is the operators' bytes over their seconds.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h200

KINDS = {
    "attention": ("fmha", "sdpa", "flash"),
    "reordering": ("nchwtonhwc", "nhwctonchw"),
    "convolution": ("fprop", "dgrad", "wgrad", "implicitgemm", "conv2d_", "conv_depthwise"),
    "product": ("gemm", "nvjet", "cutlass", "splitk"),
}
"""Words in the names of kernels; the first kind that has one of them. All others move memory."""
NO_KERNELS = ("##", "Optimizer.step")
"""Ranges that the profiler lists beside kernels."""
WARMUP, STEPS, PROFILED = 5, 10, 2


def kind_of(kernel: str) -> str:
    """By its name."""
    name = kernel.lower()
    if name.startswith("triton"):
        return "bandwidth"
    found = (kind for kind, words in KINDS.items() if any(word in name for word in words))
    return next(found, "bandwidth")


def measured(case: h200.Case) -> dict[str, Any]:
    """Milliseconds of a step, of its kernels and of its operators."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    gc.collect()
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    step = h200._step(case, "cuda", tiny=False)
    for _ in range(WARMUP):
        step()
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(STEPS):
        step()
    host_s = (time.perf_counter() - began) / STEPS
    torch.cuda.synchronize()
    step_s = (time.perf_counter() - began) / STEPS
    activities = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
    with profile(activities=activities, record_shapes=True) as watched:
        for _ in range(PROFILED):
            step()
        torch.cuda.synchronize()
    kernels: dict[str, list[float]] = {}
    operators = []
    for one in watched.key_averages(group_by_input_shape=True):
        ms, calls = one.self_device_time_total / 1e3 / PROFILED, one.count / PROFILED
        if one.key.startswith(NO_KERNELS) or not ms:
            continue
        if one.device_type == torch.autograd.DeviceType.CUDA:
            before = kernels.get(one.key, [0.0, 0.0])
            kernels[one.key] = [before[0] + calls, before[1] + ms]
        else:
            operators.append([one.key, str(one.input_shapes), calls, ms])
    return {
        "step_ms": 1e3 * step_s,
        "host_ms": 1e3 * host_s,
        "kernels": kernels,
        "operators": sorted(operators, key=lambda one: -one[3]),
    }


def planned(case: h200.Case) -> dict[str, float]:
    """The same kinds in milliseconds, as the planner has them."""
    from hotlap.planner import step as steps
    from hotlap.planner.plan import best

    asked = h200.question(case, tiny=False)
    work, by = best(asked).work, asked.by
    (stage,) = work.stages
    reach = by.product_reach[work.generation]
    convolution = reach * by.convolution_reach[work.convolution_rate]
    product = reach * (steps.EAGER_CLOCKS if work.is_eager else 1.0)
    if work.rate == "fp32":
        product = by.fp32_reach
    stream = by.stream_reach_of[work.generation]
    between = steps.BETWEEN_KERNELS_S * (steps.COMPILED_KERNELS if work.is_compiled else 1.0)

    def both(name: str) -> float:
        return sum(1e3 * getattr(part, name) for part in (stage.forward, stage.backward))

    return {
        "multiplying": both("product_s") / product + both("convolution_s") / convolution,
        "attention": both("attention_s") / by.attention_reach[work.generation],
        "all else": (both("stream_s") + 1e3 * stage.update_stream_s) / stream
        + both("n_kernels") * between,
    }


def rows(lines: list[str]) -> Iterator[str]:
    """Of the table."""
    heads = ["training", "step ms", "its host"]
    for kind in ("multiplying", "attention", "all else"):
        heads += [kind, "planned"]
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    for line in lines:
        one = json.loads(line)
        case = h200.Case(**one["case"])
        ms = dict.fromkeys((*KINDS, "bandwidth"), 0.0)
        for name, (_, spent) in one["kernels"].items():
            ms[kind_of(name)] += spent
        found = {
            "multiplying": ms["product"] + ms["convolution"],
            "attention": ms["attention"],
            "all else": ms["bandwidth"] + ms["reordering"],
        }
        plan = planned(case)
        pairs = " | ".join(f"{found[kind]:.1f} | {plan[kind]:.1f}" for kind in found)
        yield (
            f"| {case.model} {case.name}, {case.batch} | {one['step_ms']:.1f} | "
            f"{one['host_ms']:.1f} | {pairs} |"
        )


def main() -> None:
    """Measure, or compare."""
    from dataclasses import asdict

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", type=int, choices=sorted(h200.BATCHES), default=1)
    parser.add_argument("--only", choices=h200.MODELS, help="one of the models")
    parser.add_argument("--names", nargs="*", help="some of its trainings, as h200.py names them")
    parser.add_argument("--to", type=Path, default=Path("kernels.jsonl"), metavar="FILE")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="that was written before")
    arguments = parser.parse_args()
    if arguments.compare:
        print("\n".join(rows(arguments.compare.read_text().splitlines())))
        return
    models = (arguments.only,) if arguments.only else h200.MODELS
    with arguments.to.open("w", encoding="utf-8") as file:
        for model in models:
            for case in h200.cases(model, tiny=False, number=arguments.set):
                if arguments.names and case.name not in arguments.names:
                    continue
                print(f"{model} {case.name}", flush=True)
                file.write(json.dumps({"case": asdict(case), **measured(case)}) + "\n")
                file.flush()


if __name__ == "__main__":
    main()
