"""`hotlap plan`: will it fit, how long, how much, on how many GPUs."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from hotlap.cli import options
from hotlap.cli.plan_cluster import site_of
from hotlap.cli.plan_model import check_given, model_of, needed
from hotlap.cli.plan_options import make_parser
from hotlap.errors import UsageError
from hotlap.planner.budget import Money, budget_gpu_hours, compute_optimal
from hotlap.planner.cluster import KINDS, Gpus, check_precision
from hotlap.planner.emit import Source, recipe_text, submit_line
from hotlap.planner.layers import Model
from hotlap.planner.layout import Layout, parse_layout
from hotlap.planner.plan import Question, make_plan
from hotlap.planner.precision import find_precision
from hotlap.planner.training import Training
from hotlap.records.ceilings import Ceilings
from hotlap.records.plan import Plan
from hotlap.records.run import Run


def main(argv: Sequence[str]) -> int:
    """Predict, and say so; 0 also where it does not fit, for that is an answer."""
    arguments = make_parser().parse_args(argv)
    options.check_json_target(arguments.json)
    if arguments.list_gpus:
        from hotlap.report.plan import render_gpus

        print(render_gpus())
        return 0
    _check_targets(arguments)
    asked, source = question_of(arguments)
    if arguments.machine:
        asked = _with_machine(asked, arguments.machine)
    if arguments.run:
        from hotlap.planner.runs import calibrated

        asked = calibrated(asked, _run(arguments, arguments.run))
    if arguments.check:
        return _check(asked, arguments)
    with _progress(asked):
        plan = make_plan(asked)
    options.write_result(arguments.json, plan)
    if arguments.html:
        from hotlap.report.plan_html import plan_page

        options.write_document("--html", arguments.html, plan_page(plan))
    _show(plan, asked, arguments)
    if arguments.emit:
        _emit(plan, asked, source, arguments.emit)
    return 0


def _with_machine(asked: Question, named: str) -> Question:
    from hotlap.planner.measured import by_machine

    ceilings = _ceilings(named)
    found = by_machine(asked.by, asked.gpus, ceilings, asked.training.precision)
    return replace(asked, by=found.by, gpus=found.gpus, machine=found.words)


def _ceilings(named: str) -> Ceilings:
    """Of a diagnosis, or of the last one that was made on this machine."""
    from hotlap.machine.ceiling_cache import cache_folder, newest

    if named == "here":
        kept = newest(cache_folder())
        if kept is None:
            raise UsageError("--machine is here; nothing was measured yet: run hotlap doctor first")
        return kept
    from hotlap.records.finding import Diagnosis

    found = Diagnosis.read(Path(named)).machine.ceilings
    if found is None:
        raise UsageError(
            f"--machine {named} holds no ceilings; run hotlap doctor on that machine again"
        )
    return found


@contextlib.contextmanager
def _progress(asked: Question) -> Iterator[None]:
    """A search may take seconds: say so on a terminal, and take it back."""
    is_live = asked.layout is None and sys.stderr.isatty()
    if is_live:
        print("  looking for layouts …", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if is_live:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _check_targets(arguments: argparse.Namespace) -> None:
    """What is written or looked up at the end is tried before anything is reckoned."""
    path: Path | None = arguments.emit
    if path is not None and (path.suffix != ".toml" or not path.parent.is_dir()):
        raise UsageError(
            f"--emit {path} cannot be written: name a file that ends in .toml, in a folder that is"
        )
    options.check_target("--html", arguments.html)
    if arguments.html and (arguments.params or arguments.check):
        other = "--params" if arguments.params else "--check"
        raise UsageError(f"--html draws a plan; {other} makes none: leave one of them out")
    if arguments.budget:
        budget_gpu_hours(arguments.budget, 1, 1.0, 1.0)


def _show(plan: Plan, asked: Question, arguments: argparse.Namespace) -> None:
    from hotlap.report.plan import render_budget, render_plan

    if arguments.params:
        from hotlap.report.plan import render_arithmetic

        print(render_arithmetic(plan))
    else:
        print(render_plan(plan))
    if arguments.budget:
        hours = budget_gpu_hours(
            arguments.budget, asked.gpus.n, plan.cluster.power_w, asked.money.pue
        )
        rate = plan.mfu.value * plan.cluster.peak_flops_per_s
        flops = hours * 3600 * rate * asked.money.goodput
        print(render_budget(plan, hours, flops, compute_optimal(flops)))


def _check(asked: Question, arguments: argparse.Namespace) -> int:
    from hotlap.planner.runs import check
    from hotlap.report.plan import render_check

    run = _run(arguments, arguments.check)
    plan, rows = check(asked, run)
    options.write_result(arguments.json, {"plan": plan, "checks": rows})
    print(render_check(plan, run, rows))
    return 0


def _run(arguments: argparse.Namespace, name: str) -> Run:
    return Run.read(options.open_store(arguments.runs_dir).find(name))


def _emit(plan: Plan, asked: Question, source: Source, path: Path) -> None:
    layout = parse_layout(plan.layout, asked.layout.recompute if asked.layout else "none")
    layout = replace(layout, recompute=plan.training.recompute)  # type: ignore[arg-type]
    path.write_text(recipe_text(plan, layout, source), encoding="utf-8")
    print(f"\n  {path} holds the settings; it runs with\n    {submit_line(plan, str(path))}")


def question_of(arguments: argparse.Namespace) -> tuple[Question, Source]:
    """What the command line asks, with its model."""
    arguments.compile |= arguments.compile_loss
    of_gpus = ("gpus",) if arguments.cluster else ("gpu", "gpus")
    of_a_step = () if arguments.params else ("batch",)
    check_given(arguments, *of_gpus, *of_a_step, "precision", "optimizer")
    site = site_of(arguments)
    gpus = site.gpus
    precision, optimizer = needed(arguments, "precision"), needed(arguments, "optimizer")
    assumptions: list[str] = []
    layout = _layout(arguments, gpus)
    batch = _batch(arguments, layout, gpus)
    micro = arguments.micro_batch or _micro(arguments, layout, batch)
    training = Training(
        batch,
        micro,
        precision,
        optimizer,
        overlaps=not arguments.no_overlap,
        overlaps_tensor=arguments.overlap_tensor,
        is_compiled=arguments.compile,
        is_loss_compiled=arguments.compile_loss,
        is_channels_last=arguments.channels_last,
        is_fused=arguments.fused,
        data_samples_per_s=arguments.data_rate,
    )
    find_precision(precision)
    check_precision(gpus, precision)
    model, source = model_of(arguments, precision)
    money = Money(
        arguments.goodput,
        arguments.watts,
        arguments.pue,
        arguments.co2,
        arguments.price,
        site.charge_per_gpu_hour,
        site.charge_unit,
    )
    if arguments.params and not arguments.rate and (arguments.tokens or arguments.budget):
        raise UsageError(
            "--rate is not given; --params says nothing of how fast a GPU gets: give the FLOP/s of "
            "one, or the model's sizes"
        )
    assumptions += _assumptions(arguments, model, money, gpus)
    question = Question(
        model,
        gpus,
        training,
        layout,
        arguments.recompute,
        arguments.micro_batch,
        _total_samples(arguments, model),
        money,
        arguments.margin,
        arguments.rate,
        assumptions=tuple(assumptions),
        is_for_the_trainer=arguments.emit is not None,
        profile=site.cluster,
        profile_gpu=site.submitted_as,
    )
    return question, source


def _layout(arguments: argparse.Namespace, gpus: Gpus) -> Layout | None:
    if arguments.layout is not None:
        if not arguments.layout.strip():
            raise UsageError(
                "--layout is empty; it takes words like dp=8, or is left out to search"
            )
        if arguments.recompute is None:
            raise UsageError("--recompute is not given; with --layout it decides the memory")
        return parse_layout(arguments.layout, arguments.recompute)
    if arguments.params:
        return Layout(dp=gpus.n, recompute=arguments.recompute or "none")
    return None


def _batch(arguments: argparse.Namespace, layout: Layout | None, gpus: Gpus) -> int:
    if arguments.params:
        return arguments.batch or (layout.n_data if layout else gpus.n)
    batch: int = needed(arguments, "batch")
    return batch


def _micro(arguments: argparse.Namespace, layout: Layout | None, batch: int) -> int:
    """Of a search it is the first to be tried; a given layout without accumulation has but one."""
    if layout is None or arguments.params:
        return 1
    raise UsageError("--micro-batch is not given; with --layout it decides the memory")


def _total_samples(arguments: argparse.Namespace, model: Model) -> float | None:
    if arguments.epochs or arguments.dataset:
        total: float = needed(arguments, "epochs") * needed(arguments, "dataset")
        return total
    if arguments.tokens:
        if model.unit == "images":
            raise UsageError("--tokens is for sequences; of images give --samples")
        return float(arguments.tokens) / model.tokens_per_sample
    return float(arguments.samples) if arguments.samples else None


def _written(arguments: argparse.Namespace, model: Model) -> str:
    """How a traced model's training is written, as far as it decides the time."""
    parts = [f"torch's {'fused' if arguments.fused else 'default'} optimizer"]
    if model.has_convolutions:
        last = arguments.channels_last or arguments.compile
        parts.append(f"channels {'last' if last else 'first, as torch has them by default'}")
        if arguments.precision == "fp32":
            parts.append("convolutions in TF32 as by default (fp32-strict has none)")
    return ", ".join(parts)


def _compiled(arguments: argparse.Namespace) -> str:
    if not arguments.compile:
        return "eager"
    return "compiled with its loss" if arguments.compile_loss else "compiled"


def _assumptions(
    arguments: argparse.Namespace, model: Model, money: Money, gpus: Gpus
) -> list[str]:
    if arguments.params:
        lines = ["activations and step time are not known from --params alone"]
    else:
        lines = [
            f"{arguments.attention} attention, {_compiled(arguments)}, "
            f"communication {'waits' if arguments.no_overlap else 'overlaps with computing'}, "
            f"tensor parallel sums {'too' if arguments.overlap_tensor else 'do not'}"
            + (f", {arguments.gate} gates" if not model.is_traced and model.is_gated else ""),
            "MFU and HFU: attention in full (12·L·h·s a token), against the dense peak of "
            f"{KINDS[gpus.kind].chip} at this precision; HFU counts what is computed again",
        ]
    if model.is_traced:
        lines.append(_written(arguments, model))
    if arguments.tokens or arguments.samples or arguments.epochs:
        lost = "nothing lost: 0.6 to 0.9 is seen in long runs" if money.goodput == 1 else "given"
        lines.append(f"goodput {money.goodput:g} ({lost})")
        watts = "given" if money.watts else "the chip's most, less is usual"
        power = money.watts or gpus.chip.power_max_w
        if power:
            lines.append(f"{power:.0f} W a GPU ({watts}), PUE {money.pue:g}")
    return lines
