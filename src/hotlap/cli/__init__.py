"""The command line. Commands are looked up by name, so that each pays only for its own imports."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence

from hotlap import __version__
from hotlap.errors import UsageError

COMMANDS = {
    "doctor": "what this machine is, what it can do, and what is set wrong",
    "time": "run a training command unchanged and say where its step goes",
    "profile": "the same, and what its kernels and operators are and where they come from",
    "tune": "find the fastest settings that train the same, each step proven",
    "run": "run a training command with the settings that `tune` kept",
    "levers": "what `tune` tries: what each lever does, changes and costs",
    "plan": "predict memory, time and cost of a training on a cluster, and its best layout",
    "train": "train a recipe with every good practice, on one device or many",
    "submit": "run a command on a cluster's GPUs, without a job script",
    "queue": "your jobs: state, why they wait, when they start",
    "logs": "what jobs printed, followed or searched",
    "cancel": "take jobs back",
    "efficiency": "what a job made of the GPUs that it had",
    "clusters": "the clusters that are known, and what is known of each",
    "runs": "list what was measured",
    "compare": "two Runs side by side, and whether they differ",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command of hotlap's; the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        if words and words[0] in COMMANDS:
            module = importlib.import_module(f"hotlap.cli.{words[0]}")
            code: int = module.main(words[1:])
            return code
        return _overview(words)
    except UsageError as error:
        print(f"hotlap: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has left (`hotlap runs | head`): so do we.
        sys.stderr.close()
        return 1


def _overview(words: list[str]) -> int:
    listing = "\n".join(f"  {name:<12}{text}" for name, text in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="hotlap",
        description="Make PyTorch training fast, without a change to the script.",
        epilog=f"commands:\n{listing}\n\n`hotlap COMMAND --help` tells more of each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="hotlap [--help] [--version] COMMAND …",
    )
    parser.add_argument("--version", action="version", version=f"hotlap {__version__}")
    if not words:
        parser.print_help()
        return 0
    _, rest = parser.parse_known_args(words)
    raise UsageError(f"'{rest[0]}' is no command of hotlap's; there are {', '.join(COMMANDS)}")
