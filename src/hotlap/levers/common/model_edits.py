"""Edits of the models themselves: each that is no part of another, before an optimizer is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hotlap.levers.common.edits import Edit, insert_before, tell
from hotlap.levers.common.workload import Seen, Site, Workload


def models_to_edit(
    workload: Workload, is_changed: Callable[[dict[str, Any]], bool]
) -> tuple[Seen, ...]:
    """The whole models that a lever changes; where none was seen, one that is nowhere."""
    found = tuple(one for one in workload.whole_models if is_changed(one.facts))
    return found if workload.models else (Seen(None, {}),)


def first_optimizer(workload: Workload) -> Site | None:
    """Where the first optimizer is made: what is done to models comes before it."""
    return workload.optimizers[0].site if workload.optimizers else None


def before_optimizer(workload: Workload, model: Seen, text: str) -> Edit:
    """Put statements about {model} before the optimizer is made.

    In words where one line calls several models: by which name each is called is not known.
    """
    if model.site is None or workload.is_alone_on_its_line(model):
        is_of_several = len(workload.whole_models) > 1
        return insert_before(first_optimizer(workload), text, model.site, is_of_several)
    kind = model.facts.get("kind", "model")
    words = text.replace("{model}", "model")
    return tell(model.site, f"{words} for the {kind} of this line, before its optimizer is made")
