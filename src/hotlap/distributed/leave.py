"""How a rank ends that has talked to others."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process as the interpreter would, except for taking the interpreter itself down.

    A thread of gloo that is done with a collective drops its tensors and needs the interpreter for
    it; one that finds it being taken down aborts the process. A training that went well would then
    end as one that failed: now and then where the cores are busy, since its last collective, the
    gathering of weights, stands just before its end. No group's threads can be waited for, since
    torch keeps groups in caches of its own after they are destroyed.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
