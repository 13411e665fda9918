"""What a model gives back, by its type: edits that change a result have to know."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from hotlap.levers.common.process import Process, is_compiled

Report = Callable[..., None]


def watch_results(process: Process, report: Report) -> None:
    """Report what the first training call of each model gives back; of compiled ones nothing."""

    def meet(module: Any, args: Any, kwargs: Any) -> None:
        if is_compiled(module):
            return  # a hook would have it compiled anew

        def see(module: Any, args: Any, result: Any) -> None:
            with contextlib.suppress(Exception):
                handle.remove()
                report(seen="result", facts={"kind": type(result).__name__})

        handle = module.register_forward_hook(see)

    process.on_model(meet)
