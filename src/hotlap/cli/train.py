"""`hotlap train`: the reference trainer, recorded by the chronometer like any other training."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from hotlap.chronometer.session import Settings
from hotlap.cli import options, time
from hotlap.trainer.recipe import recipes, resolve, show

COLLECTIVES = "collectives"


def main(argv: Sequence[str]) -> int:
    """Train a recipe; the exit code."""
    if argv and argv[0] == COLLECTIVES:
        return _become("hotlap.distributed.collectives", argv[1:])
    arguments = _parse(argv)
    if arguments.list:
        for name, text in recipes().items():
            print(f"{name:<22}{text}")
        return 0
    words = [arguments.recipe, *arguments.changes]
    settings = resolve(words[0], words[1:])  # what is wrong is said before anything starts
    if arguments.show:
        print(show(settings))
        return 0
    if is_one_of_many():
        return _become("hotlap.trainer", words)
    command = ["--", sys.executable, "-m", "hotlap.trainer", *words]
    return time.measure(time.parse(command), is_told_empty=False)


def is_one_of_many() -> bool:
    """Whether a launcher has started this process: `hotlap time`, or one of ranks.

    Then it is recorded from outside, or the ranks record themselves.
    """
    launchers = ("RANK", "SLURM_STEP_ID", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK", "PMI_RANK")
    return Settings.VARIABLE in os.environ or any(name in os.environ for name in launchers)


def _become(module: str, words: Sequence[str]) -> int:
    """Go on as another module of the package, in this very process."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *words])


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = options.Parser(
        prog="hotlap train",
        usage="hotlap train [--list] RECIPE [--show] [key=value …]",
        description="Train a recipe: ResNet, ViT or GPT, or a model of yours, on one device or "
        "many. Started alone, by torchrun (`torchrun --nproc-per-node 4 -m hotlap train …`) or by "
        "srun. It goes on from its last checkpoint; SIGTERM and SIGUSR1 make it write one and "
        "leave with exit code 75.",
        epilog="`hotlap train collectives` shows and times what ranks say to one another.",
    )
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="a name of --list, or a file")
    parser.add_argument("changes", nargs="*", metavar="key=value", help="settings to change")
    parser.add_argument("--list", action="store_true", help="the recipes that there are")
    parser.add_argument("--show", action="store_true", help="print the settings, train nothing")
    arguments = parser.parse_intermixed_args(argv)
    if not arguments.list and arguments.recipe is None:
        parser.error("a recipe is missing; --list names some")
    return arguments
