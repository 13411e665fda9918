"""What the doctor sees inside the training process, beside what the levers see.

watch.py        one process: what is counted, and the event in which it is told
calls.py        calls that take time in the step, by the line that makes them
training.py     calls of the model, backwards, updates: in which mode, on which shapes
layers.py       the layers of the model and their sizes
distributed.py  DistributedDataParallel and the samplers of ranks
compiled.py     what torch.compile made, and made again
opens.py        files that are opened while it trains, in loader workers too

Standard library only, and it fails open: what cannot be watched is not known, and the training
goes on. It costs some microseconds a call, which is why `hotlap time` does without.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hotlap.chronometer.dynamo import hide_from_dynamo
from hotlap.doctor.inside import calls, compiled, distributed, layers, opens, training
from hotlap.doctor.inside.watch import Watch
from hotlap.levers.common.inside import EventWriter

MODULE = __name__
"""For the variable by which the launcher has this module installed."""


def install(torch: Any, session: Any) -> Watch:
    """Watch this process; called at the end of `import torch`, after the levers' own watcher."""
    watch = Watch(torch, session, EventWriter(Path(session.settings.folder)))
    for part in (training, layers, calls, distributed, compiled, opens):
        watch.try_to(part.install, watch)
    hide_from_dynamo(torch, MODULE)
    return watch
