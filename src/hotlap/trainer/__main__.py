"""`python -m hotlap.trainer RECIPE key=value …`: the training process itself, on every rank."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from hotlap.errors import UsageError
from hotlap.trainer.recipe import resolve

TIMEOUT_S = 600.0
"""After which a rank that waits for another one gives up."""


def main(argv: Sequence[str]) -> int:
    """Train; the exit code."""
    try:
        if not argv:
            raise UsageError("a recipe is missing: hotlap train --list names some")
        settings = resolve(argv[0], argv[1:])
        from hotlap.distributed.launch import detect, start
        from hotlap.trainer.build import build
        from hotlap.trainer.loop import train

        launch = detect(os.environ)
        with start(launch, TIMEOUT_S, device=settings.compute.device or "auto"):
            return train(build(settings, launch))
    except UsageError as error:
        print(f"hotlap train: {error}", file=sys.stderr, flush=True)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
