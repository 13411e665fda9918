"""`hotlap cancel`: take jobs back."""

from __future__ import annotations

from collections.abc import Sequence

from hotlap.cli import options


def main(argv: Sequence[str]) -> int:
    """Cancel jobs; the exit code."""
    parser = options.Parser(
        prog="hotlap cancel",
        usage="hotlap cancel JOB …",
        description="Take jobs back. JOB is a number (12, or 12_3 for one task of an array), a "
        "name, or a pattern of names ('train*').",
    )
    parser.add_argument("jobs", nargs="+", metavar="JOB")
    arguments = parser.parse_args(argv)
    from hotlap.slurm.find import cancel

    for word in arguments.jobs:
        numbers = cancel(word)
        print(f"cancelled: {', '.join(numbers)}" if numbers else f"{word} is over already")
    return 0
