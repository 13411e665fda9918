"""`python -m hotlap.trainer RECIPE key=value …`: the training process itself, on every rank."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence

from hotlap.errors import UsageError
from hotlap.trainer.recipe import resolve


def main(argv: Sequence[str]) -> int:
    """Train; the exit code."""
    try:
        # Of a checkpoint that one process writes alone, as it should.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        if not argv:
            raise UsageError("a recipe is missing: hotlap train --list names some")
        settings = resolve(argv[0], argv[1:])
        from hotlap.trainer.recording import Recording, watch

        session = watch()  # first, so that what is imported next finds torch as it will be
        from hotlap.distributed.launch import detect, start
        from hotlap.distributed.leave import leave
        from hotlap.trainer.build import build
        from hotlap.trainer.loop import train

        launch = detect(os.environ)
        device = settings.compute.device or "auto"
        with (
            start(launch, settings.mesh.timeout_s, device=device) as started,
            Recording(session, launch, argv) as recording,
        ):
            training = build(settings, started)
            with training.watch:
                recording.code = train(training)
        if started.is_group:
            leave(recording.code)
        return recording.code
    except UsageError as error:
        print(f"hotlap train: {error}", file=sys.stderr, flush=True)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
