"""`hotlap tune`: find the fastest settings that train the same, each step of the climb proven."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotlap.cli import options
from hotlap.errors import UsageError

INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Climb; 0 when it came to its end, 130 when it was interrupted."""
    arguments = parse(argv)
    try:
        return _tune(arguments)
    except KeyboardInterrupt:
        goes_on = "the same command goes on where it was"
        what = "what was measured is above" if arguments.sweep else goes_on
        print(f"\nhotlap: interrupted; {what}", file=sys.stderr)
        return INTERRUPTED


def _tune(arguments: argparse.Namespace) -> int:
    options.check_json_target(arguments.json)
    if arguments.prove and arguments.seeds < 2:
        raise UsageError("--seeds 1 was found; two or more are needed for an interval")
    _check_steps(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    from hotlap.tuner.tune import TuneRequest, Tuning, Watcher

    request = TuneRequest(
        command=arguments.command,
        runs_dir=arguments.runs_dir,
        output=arguments.output,
        result_file=arguments.json,
        budget_s=60 * arguments.budget,
        objective=arguments.objective,
        memory_limit_bytes=arguments.memory_limit and arguments.memory_limit * 2**30,
        allowed=tuple("batch_size" if name == "batch" else name for name in arguments.allow),
        only=tuple(arguments.only),
        skipped=tuple(arguments.skip),
        steps=arguments.steps,
        lever_files=tuple(str(Path(file).resolve()) for file in arguments.lever_file),
        in_place=arguments.in_place,
        scratch_dir=arguments.scratch,
        fresh=arguments.fresh,
    )
    display = Display(arguments.quiet, arguments.objective)
    watcher = Watcher(display.started, display.baseline, display.rung, display.note)
    tuning = Tuning(request, watcher)
    options.check_target("--output", arguments.output)
    options.check_folder("--runs-dir", arguments.runs_dir)
    if arguments.sweep:
        return _sweep(tuning, arguments, display)
    from hotlap.report.ladder import render_ladder, render_title

    display.line(render_title(request.command, request.budget_s))
    ladder = tuning.climb()
    display.line(render_ladder(ladder, str(arguments.output)))
    try:
        if arguments.prove and ladder.status != "interrupted":
            ladder = _proven(tuning, ladder, arguments, display)
    except KeyboardInterrupt:
        display.note(f"interrupted before the proof was there; {arguments.output} is as above")
        return INTERRUPTED
    finally:
        options.write_result(arguments.json, ladder)
    if ladder.status == "interrupted":
        raise KeyboardInterrupt
    return 0


def _check_steps(arguments: argparse.Namespace) -> None:
    """A sweep compares no losses."""
    from hotlap.tuner.bench import N_WARMUP
    from hotlap.tuner.guard import MIN_STEPS

    if arguments.steps and not arguments.sweep and arguments.steps + N_WARMUP < MIN_STEPS:
        raise UsageError(
            f"--steps {arguments.steps} was found; the guard compares {MIN_STEPS} losses, for "
            f"which {MIN_STEPS - N_WARMUP} steps and {N_WARMUP} of warm-up are needed"
        )


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _sweep(tuning: Any, arguments: argparse.Namespace, display: Display) -> int:
    """Line by line; what there is stays where it is interrupted."""
    from hotlap.report.ladder import render_sweep_end, render_sweep_head, render_sweep_point
    from hotlap.tuner.sweep import sweep_batch

    points: list[Any] = []
    try:
        for point in sweep_batch(tuning):
            if not points:
                display.line(render_sweep_head())
            points.append(point)
            display.line(render_sweep_point(point))
    finally:
        if points:
            options.write_result(arguments.json, points)
    display.line(render_sweep_end(points))
    return 0


def _proven(tuning: Any, ladder: Any, arguments: argparse.Namespace, display: Display) -> Any:
    """The ladder with its proof."""
    if not ladder.levers:
        display.note("nothing was kept, so that there is nothing to prove")
        return ladder
    from hotlap.report.ladder import render_proof
    from hotlap.tuner.prove import prove

    proof = prove(tuning, ladder.levers, arguments.prove, arguments.seeds)
    display.line(render_proof(proof))
    ladder = replace(ladder, proof=proof)
    tuning.keep(ladder)
    return ladder


class Display:
    """Lines on stderr; on a terminal also what is being tried right now."""

    def __init__(self, quiet: bool, objective: str) -> None:
        self._quiet, self._objective = quiet, objective
        self._has_energy = True
        self._is_live = sys.stderr.isatty() and not quiet
        self._width = shutil.get_terminal_size().columns if self._is_live else None
        self._n_started, self._began = 0, time.monotonic()

    def line(self, text: str) -> None:
        """Print something that stays."""
        if not self._quiet:
            print(("\r\x1b[K" if self._is_live else "") + text, file=sys.stderr, flush=True)

    def started(self, levers: Mapping[str, str]) -> None:
        """A trial has begun."""
        from hotlap.report.ladder import settings_text

        self._n_started += 1
        text = f"  trial {self._n_started}, {time.monotonic() - self._began:.0f} s: "
        if self._is_live:
            line = (text + settings_text(levers))[: self._width]
            print(f"\r\x1b[K{line}", end="", file=sys.stderr, flush=True)

    def baseline(self, trials: Sequence[Any], rate: Any) -> None:
        """The baseline has been measured."""
        from hotlap.report.ladder import render_baseline

        self._has_energy = rate.energy_per_sample_j is not None
        self.line(render_baseline(trials, rate, self._objective))

    def rung(self, rung: Any) -> None:
        """A rung has been decided."""
        from hotlap.report.ladder import render_rung

        if rung.state not in ("not applicable", "not allowed"):
            self.line(render_rung(rung, self._width, has_energy=self._has_energy))

    def note(self, text: str) -> None:
        """Something a user should know."""
        self.line(f"  note: {text}")


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _some_names(text: str) -> list[str]:
    """None at all would mean all of them."""
    names = _names(text)
    if not names:
        raise argparse.ArgumentTypeError(f"'{text}' was found; the name of a lever is expected")
    return names


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The options and the command."""
    parser = options.Parser(
        prog="hotlap tune",
        usage="hotlap tune [options] [--] COMMAND …",
        description="Measure a training command, then try levers one by one in short runs of it. A "
        "lever is kept only if it makes the step faster by more than the noise and the training "
        "stays the same. Trials run in a copy of this folder. Writes hotlap.toml, which "
        "`hotlap run` applies.",
        epilog="The command itself is not changed; at the end the edits are shown that would have "
        "the same effect in its source.",
    )
    parser.add_argument(
        "--budget",
        type=options.above_zero,
        default=15.0,
        metavar="MIN",
        help="minutes to take (15)",
    )
    parser.add_argument(
        "--objective",
        choices=("time", "memory", "energy"),
        default="time",
        help="what to improve (time)",
    )
    parser.add_argument(
        "--memory-limit",
        type=options.above_zero,
        metavar="GIB",
        help="peak memory that is not exceeded",
    )
    parser.add_argument(
        "--allow",
        type=_names,
        default=[],
        metavar="A,B",
        help="levers that change the maths and may be kept all the same: batch (or batch_size), …",
    )
    parser.add_argument(
        "--only", type=_some_names, default=[], metavar="A,B", help="only these levers"
    )
    parser.add_argument("--skip", type=_names, default=[], metavar="A,B", help="not these levers")
    parser.add_argument(
        "--steps",
        type=options.positive,
        metavar="N",
        help="measured steps in each trial (about 4 s of them, and 32 at least)",
    )
    parser.add_argument(
        "--prove", type=options.positive, metavar="N", help="then train both to N steps and compare"
    )
    parser.add_argument(
        "--seeds", type=options.positive, default=3, metavar="K", help="seeds for --prove (3)"
    )
    parser.add_argument(
        "--sweep", choices=("batch",), help="only record rate, memory and power by batch size"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("hotlap.toml"),
        metavar="FILE",
        help="settings file to write (hotlap.toml)",
    )
    parser.add_argument(
        "--lever-file", action="append", default=[], metavar="FILE", help="further levers of yours"
    )
    parser.add_argument("--in-place", action="store_true", help="run trials here, not in a copy")
    parser.add_argument(
        "--scratch", type=Path, metavar="DIR", help="where the copy is made; all nodes must see it"
    )
    parser.add_argument("--fresh", action="store_true", help="do not resume an interrupted climb")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    options.add_json(parser)
    options.add_runs_dir(parser)
    return options.parse_with_command(parser, argv, "hotlap tune train.py --lr 0.1")
