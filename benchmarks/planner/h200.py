"""ResNet-50, ViT-B/16 and GPT-2 124M on one H200: predicted first, then measured, then compared.

    PYTHONPATH=src python3 benchmarks/planner/h200.py [--only resnet50] [--write FILE]

24 cases, 8 a model: every pair of batch, optimizer, precision and checkpointing occurs, and two of
the 8, opposite in all of these, are compiled. Predictions are those of `hotlap plan`, written to a
file before anything is measured (`--predictions FILE` takes one that was written before). About two
minutes a model, most of them compiling. `--device cpu --tiny` tries the whole path without a GPU.
`--set 2`, `3` and `4` have 24 others each: other batches, and in the second and fourth checkpoints
and layouts where the first has none.
`--machine FILE` predicts with what `hotlap doctor` measured there before, as `hotlap plan` does.
`--measured FOLDER` compares with what was measured before, without a GPU.

Steps follow one another as in a training, without a wait for the device in between. Calibrated is a
prediction as `hotlap plan --run` makes it, by one Run of the same model in the same precision: of
the small batch, plain.

Memory is compared three ways: bytes that torch's allocator hands out (what `hotlap plan --check`
compares with a Run's `device_peak_bytes`: the plan's total without context and fragmentation),
bytes that it holds (the total without the context), and what the device has lost since the start
(the total).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

MODELS = ("resnet50", "vit_b16", "gpt2_124m")
FACTORIES = {
    "resnet50": ("hotlap.models.resnet:resnet50", {}),
    "vit_b16": ("hotlap.models.vit:vit_base", {}),
    "gpt2_124m": ("hotlap.models.gpt:gpt2_124m", {}),
}
TINY = {
    "resnet50": ("hotlap.models.resnet:resnet18", {}),
    "vit_b16": (
        "hotlap.models.vit:ViT",
        {"n_layers": 2, "n_heads": 2, "width": 32, "image_size": 32},
    ),
    "gpt2_124m": (
        "hotlap.models.gpt:GPT",
        {"n_layers": 2, "n_heads": 2, "width": 32, "vocab_size": 300, "context": 32},
    ),
}
BATCHES = {
    1: {"resnet50": (64, 256), "vit_b16": (64, 256), "gpt2_124m": (8, 32)},
    2: {"resnet50": (128, 384), "vit_b16": (96, 384), "gpt2_124m": (12, 48)},
    3: {"resnet50": (96, 512), "vit_b16": (48, 320), "gpt2_124m": (6, 24)},
    4: {"resnet50": (80, 320), "vit_b16": (80, 288), "gpt2_124m": (10, 40)},
}
"""By set."""
GIB = 2**30
WARMUP, BLOCKS, BLOCK_STEPS, MOST_S = 5, 5, 5, 6.0


@dataclass(frozen=True)
class Case:
    """One training."""

    model: str
    batch: int
    optimizer: str
    precision: str
    is_checkpointed: bool
    is_compiled: bool
    is_channels_last: bool
    is_large: bool

    @property
    def name(self) -> str:
        """Short, and its own among those of a model."""
        marks = ("-ckpt" * self.is_checkpointed) + ("-compile" * self.is_compiled)
        last = "-cl" * self.is_channels_last
        return f"b{int(self.is_large)}-{self.optimizer}-{self.precision}{last}{marks}"


COMPILED = {
    1: ((True, False, True), (False, True, False)),
    2: ((True, True, True), (False, False, False)),
    3: ((True, True, False), (False, False, True)),
    4: ((True, False, False), (False, True, True)),
}
"""Large, AdamW, bf16: of each set the two that are compiled."""


def cases(model: str, tiny: bool, number: int = 1) -> list[Case]:
    """Of a set: an orthogonal array of batch, optimizer and precision, and what follows from them.

    The second set and the fourth are checkpointed and channels last where the others are not.
    """
    batches, is_other = BATCHES[number], number in (2, 4)
    found = []
    for bits in range(8):
        large, adamw, bf16 = bool(bits & 1), bool(bits & 2), bool(bits & 4)
        found.append(
            Case(
                model,
                (2, 4)[large] if tiny else batches[model][large],
                "adamw" if adamw else "sgd",
                "bf16" if bf16 else "fp32",
                is_checkpointed=large ^ adamw ^ bf16 ^ is_other,
                is_compiled=(large, adamw, bf16) in COMPILED[number],
                is_channels_last=model == "resnet50" and (adamw == bf16) ^ is_other,
                is_large=large,
            )
        )
    return found


def plan_words(case: Case, tiny: bool, machine: Path | None = None) -> list[str]:
    """What `hotlap plan` is asked."""
    factory, given = (TINY if tiny else FACTORIES)[case.model]
    image, seq = (32, 32) if tiny else (224, 1024)
    size = ["--seq", str(seq)] if case.model == "gpt2_124m" else ["--image-size", str(image)]
    words = [factory, *size, "--batch", str(case.batch), "--micro-batch", str(case.batch)]
    for key, value in given.items():
        words += ["--arg", f"{key}={json.dumps(value)}"]
    words += ["--precision", case.precision, "--optimizer", case.optimizer]
    words += ["--recompute", "full" if case.is_checkpointed else "none", "--layout", "dp=1"]
    words += ["--gpu", "h200-141gb", "--gpus", "1"]
    words += ["--machine", str(machine)] if machine else []
    words += ["--compile-loss"] * case.is_compiled + ["--channels-last"] * case.is_channels_last
    return words


def predicted(case: Case, tiny: bool, machine: Path | None) -> dict[str, Any]:
    """Seconds and bytes of one case, or why there are none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "plan.json")
        words = ["-m", "hotlap", "plan", *plan_words(case, tiny, machine), "--json", str(path)]
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300)
        if done.returncode:
            return {"error": done.stderr.strip()}
        plan = json.loads(path.read_text())
    memory = {name: one["value"] for name, one in plan["memory"].items()}
    held = memory["total"] - memory["context"]
    return {
        "step_s": plan["step_s"]["value"],
        "step_low_s": plan["step_s"]["low"],
        "step_high_s": plan["step_s"]["high"],
        "allocated": held - memory["fragmentation"],
        "reserved": held,
        "device": memory["total"],
    }


def measure_all(arguments: argparse.Namespace) -> None:
    """In a process of its own: one JSON line a case, also of a case that fails."""
    for case in cases(arguments.measure, arguments.tiny, arguments.set):
        if case.name not in arguments.names:
            continue
        try:
            found = measured(case, arguments.device, arguments.tiny)
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            found = {"error": f"{type(error).__name__}: {lines[0][:200]}"}
        print(json.dumps({"name": case.name} | found), flush=True)


def measured(case: Case, device: str, tiny: bool) -> dict[str, Any]:
    """Seconds of a step and bytes at its worst moment."""
    import gc

    import torch

    gc.collect()
    is_cuda = device == "cuda"
    if is_cuda:
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    step = _step(case, device, tiny)
    for _ in range(WARMUP):
        step()
    _wait(is_cuda)
    warm_s = time.perf_counter() - begin
    seconds: list[float] = []
    while len(seconds) < BLOCKS and BLOCK_STEPS * sum(seconds) < MOST_S:
        begin = time.perf_counter()
        for _ in range(BLOCK_STEPS):
            step()
        _wait(is_cuda)
        seconds.append((time.perf_counter() - begin) / BLOCK_STEPS)
    found: dict[str, Any] = {
        "step_s": sorted(seconds)[len(seconds) // 2],
        "blocks_s": seconds,
        "warm_s": warm_s,
    }
    if is_cuda:
        free, total = torch.cuda.mem_get_info()
        found |= {
            "allocated": torch.cuda.max_memory_allocated(),
            "reserved": torch.cuda.max_memory_reserved(),
            "device": total - free,
        }
    return found


def _wait(is_cuda: bool) -> None:
    if is_cuda:
        import torch

        torch.cuda.synchronize()


def _step(case: Case, device: str, tiny: bool) -> Any:
    """A plain loop's step: torch's defaults, gradients set to None, one synthetic batch."""
    import torch
    from torch.nn import functional as F

    from hotlap.models.checkpointing import checkpoint_blocks

    module, _, name = (TINY if tiny else FACTORIES)[case.model][0].partition(":")
    given = (TINY if tiny else FACTORIES)[case.model][1]
    with torch.device(device):
        model = getattr(__import__(module, fromlist=[name]), name)(**given)
    inputs, targets = _batch(case, device, tiny)
    if case.is_channels_last:
        model = model.to(memory_format=torch.channels_last)
        inputs = inputs.to(memory_format=torch.channels_last)
    if case.is_checkpointed:
        checkpoint_blocks(model)
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    optimizer = kinds[case.optimizer](model.parameters(), lr=1e-4)
    is_mixed = case.precision == "bf16"

    def loss_of(inputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, Any]:
        output = model(inputs)
        return F.cross_entropy(output.flatten(0, -2), targets), output

    # As the reference trainer does: what is compiled is the model with its loss, and nothing else
    # comes out of it. A plain loop holds its output until the next one.
    run = torch.compile(lambda *batch: (loss_of(*batch)[0], None)) if case.is_compiled else loss_of

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16, enabled=is_mixed):
            loss, output = run(inputs, targets)
        loss.backward()
        optimizer.step()
        del output

    return step


def _batch(case: Case, device: str, tiny: bool) -> tuple[Any, Any]:
    import torch

    if case.model == "gpt2_124m":
        shape = (case.batch, 32 if tiny else 1024)
        tokens = torch.randint(0, 300 if tiny else 50257, shape, device=device)
        return tokens, tokens.flatten()
    side = 32 if tiny else 224
    images = torch.randn(case.batch, 3, side, side, device=device)
    return images, torch.randint(0, 1000, (case.batch,), device=device)


def measure_model(model: str, arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """All its cases; a process that dies takes one of them, and another goes on behind it."""
    wanted = [case.name for case in cases(model, arguments.tiny, arguments.set)]
    found: dict[str, dict[str, Any]] = {}
    while len(found) < len(wanted):
        left = [name for name in wanted if name not in found]
        words = [sys.executable, __file__, "--measure", model, "--names", *left]
        words += ["--device", arguments.device]
        words += ["--set", str(arguments.set), *["--tiny"] * arguments.tiny]
        print(f"measuring {model}: {len(left)} cases", file=sys.stderr, flush=True)
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=900)
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                one = json.loads(line)
                found[one.pop("name")] = one
        still = [name for name in left if name not in found]
        if still:
            found[still[0]] = {"error": f"its process ended with exit code {done.returncode}"}
    return found


def reference(case: Case, among: list[Case]) -> Case:
    """The case whose Run calibrates this one: small and plain, in the same precision."""
    (found,) = (
        one
        for one in among
        if one.precision == case.precision
        and not (one.is_large or one.is_checkpointed or one.is_compiled)
    )
    return found


@cache
def question(case: Case, tiny: bool, machine: Path | None = None) -> Any:
    """What `hotlap plan` is asked, with the traced model."""
    from hotlap.cli.plan import question_of
    from hotlap.cli.plan_options import make_parser

    return question_of(make_parser().parse_args(plan_words(case, tiny, machine)))[0]


def calibrated_s(case: Case, by: Case, measured_s: float, how: argparse.Namespace) -> float:
    """Predicted seconds, where the other case has been measured."""
    from hotlap.planner.paces import paced
    from hotlap.planner.plan import best

    known, asked = (question(one, how.tiny, how.machine) for one in (by, case))
    return best(replace(asked, by=paced(best(known).work, known.by, measured_s))).step_s


def table(
    model: str, guesses: dict[str, Any], truths: dict[str, Any], how: argparse.Namespace
) -> list[str]:
    """A row a case: errors in per cent, and those of the time after calibration by one of them."""
    every = cases(model, how.tiny, how.set)
    lines = [
        f"## {model}",
        "",
        "| case | batch | step ms | predicted | error % | calibrated % | inside | allocated GiB | "
        "error % | reserved error % | device error % |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in every:
        guess, truth = guesses[case.name], truths[case.name]
        if "error" in guess or "error" in truth:
            lines.append(f"| {case.name} | {case.batch} | {guess.get('error', truth.get('error'))}")
            continue
        inside = guess["step_low_s"] <= truth["step_s"] <= guess["step_high_s"]
        by = reference(case, every)
        mark = " (calibrates)" if case == by else ""
        off = guess["step_s"] / truth["step_s"]
        known_s = truths[by.name].get("step_s")
        after = calibrated_s(case, by, known_s, how) if known_s else None
        memory = [_error(guess[key], truth.get(key)) for key in ("allocated", "reserved", "device")]
        lines.append(
            f"| {case.name}{mark} | {case.batch} | {1e3 * truth['step_s']:.2f} | "
            f"{1e3 * guess['step_s']:.2f} | {100 * (off - 1):+.1f} | "
            f"{_error(after, truth['step_s'])} | {'yes' if inside else 'no'} | "
            f"{truth.get('allocated', 0) / GIB:.2f} | {' | '.join(memory)} |"
        )
    return [*lines, ""]


def _error(guess: float | None, truth: float | None) -> str:
    return f"{100 * (guess / truth - 1):+.1f}" if guess and truth else "-"


def main() -> None:
    """Predict, measure, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=MODELS, help="one of the models")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the tables there too")
    parser.add_argument("--predictions", type=Path, metavar="FILE", help="made before; see --to")
    parser.add_argument("--to", type=Path, default=Path("h200-predictions.json"), metavar="FILE")
    parser.add_argument("--predict", action="store_true", help="write predictions, measure nothing")
    parser.add_argument("--measured", type=Path, metavar="FOLDER", help="of measurements: compare")
    parser.add_argument("--only-measure", action="store_true", help="compare nothing")
    parser.add_argument("--set", type=int, choices=sorted(BATCHES), default=1, help="of trainings")
    parser.add_argument("--machine", type=Path, metavar="FILE", help="as measured there")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--tiny", action="store_true", help="small models, for a try without a GPU")
    parser.add_argument("--jobs", type=int, default=8, help="predictions at a time")
    parser.add_argument("--measure", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("--names", nargs="*", default=[], help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure_all(arguments)
        return
    models = (arguments.only,) if arguments.only else MODELS
    guesses = {} if arguments.only_measure else predictions(models, arguments)
    if arguments.predict:
        return
    lines: list[str] = []
    for model in models:
        file = f"h200-measured-{model}.json"
        if arguments.measured:
            truths = json.loads((arguments.measured / file).read_text())
        else:
            truths = measure_model(model, arguments)
            arguments.to.with_name(file).write_text(json.dumps(truths, indent=1) + "\n")
        if arguments.only_measure:
            continue
        lines += table(model, guesses[model], truths, arguments)
        print("\n".join(lines[-13:]), flush=True)
    if arguments.write:
        arguments.write.write_text("\n".join(lines) + "\n", encoding="utf-8")


def predictions(models: tuple[str, ...], arguments: argparse.Namespace) -> dict[str, Any]:
    """Of all cases, in a file before anything is measured."""
    if arguments.predictions:
        found: dict[str, Any] = json.loads(arguments.predictions.read_text())
        return found
    every = [case for model in models for case in cases(model, arguments.tiny, arguments.set)]
    predict = partial(predicted, tiny=arguments.tiny, machine=arguments.machine)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        made = list(pool.map(predict, every))
    guesses: dict[str, Any] = {model: {} for model in models}
    for case, guess in zip(every, made, strict=True):
        guesses[case.model][case.name] = guess | {"case": asdict(case)}
    arguments.to.write_text(json.dumps(guesses, indent=1) + "\n", encoding="utf-8")
    print(f"predictions are in {arguments.to}", file=sys.stderr, flush=True)
    return guesses


if __name__ == "__main__":
    main()
