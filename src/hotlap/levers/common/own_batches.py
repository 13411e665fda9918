"""Batches that a script makes itself: tensors with as many rows as the model's first input.

Random images on the device, random places in a text: `torch.randn(batch, 3, 224, 224)`,
`torch.randint(len(text), (batch,))`. Only calls in the user's own source count, and none that a
module makes: its tensors are weights, or as large as its input.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from hotlap.levers.common.process import Process, is_users_file

FUNCTIONS = ("rand", "randn", "randint", "zeros", "ones", "empty", "full")
"""Of torch's, which make tensors of a size that they are given."""

Ask = Callable[[int, str, Any], int]
"""Is told the rows of a tensor that is about to be made, by which function, and the frame that
calls it; says how many rows it is to have."""


def watch_own_batches(torch: Any, process: Process, report: Callable[..., None]) -> None:
    """Report where tensors are made that have as many rows as the first model's input."""
    made: dict[tuple[str, int, str], int] = {}
    is_over = False

    def ask(rows: int, function: str, frame: Any) -> int:
        if not is_over and is_users_own(torch, frame):
            made[os.path.abspath(frame.f_code.co_filename), frame.f_lineno, function] = rows
        return rows

    def meet(module: Any, args: Any, kwargs: Any) -> None:
        nonlocal is_over
        wanted = None if is_over else rows_of(torch, args, kwargs)
        is_over = True
        for (file, line, function), rows in made.items():
            if rows == wanted:
                facts = {"rows": rows, "function": function}
                report(seen="own batch", site=(file, line), facts=facts)

    try:
        ask_for_rows(torch, process, ask)
    except (ImportError, AttributeError):
        return  # a baseline that says less is better than one that is another program
    process.on_model(meet)


def ask_for_rows(torch: Any, process: Process, ask: Ask) -> None:
    """Have `ask` decide how many rows new tensors get.

    With a torch that cannot be told of the new functions this raises, and nothing is changed.
    """
    from torch.jit._builtins import _find_builtin, _get_builtin_table
    from torch.utils._device import _device_constructors

    # What goes to a default device is known by identity, and asked for once: it has to be torch's
    # own functions, which ours call.
    _device_constructors()
    originals = {name: getattr(torch, name) for name in FUNCTIONS}
    builtins = {name: _find_builtin(original) for name, original in originals.items()}
    table = _get_builtin_table()
    for name, original in originals.items():
        asking = _asking(torch, original, ask)
        process.replace(torch, name, asking)
        table[id(asking)] = builtins[name]  # for torch.jit.script
        # Not later than the function goes: another one may have its number then.
        process.on_undo(functools.partial(_forget, table, asking))


def _forget(table: dict[int, Any], function: Any) -> None:
    table.pop(id(function), None)


def _asking(torch: Any, original: Any, ask: Ask) -> Any:
    is_compiling = torch.compiler.is_compiling

    @functools.wraps(original)
    def make(*args: Any, **kwargs: Any) -> Any:
        size = () if is_compiling() else _size(args, kwargs)
        if size:
            rows = ask(size[0], original.__name__, sys._getframe(1))
            if rows != size[0]:
                args, kwargs = _with_size(args, kwargs, (rows, *size[1:]))
        return original(*args, **kwargs)

    make.__qualname__ = original.__name__  # as which it can be pickled: torch.zeros
    return make


def _size(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, ...]:
    """The size that a call gives: by name, as one argument, or as all of them."""
    given = kwargs.get("size", next(filter(_is_sequence, args), args))
    size = tuple(given) if _is_sequence(given) else ()
    return size if all(type(one) is int for one in size) else ()


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (tuple, list))


def _with_size(
    args: tuple[Any, ...], kwargs: dict[str, Any], size: tuple[int, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with another size."""
    if "size" in kwargs:
        return args, {**kwargs, "size": size}
    if any(map(_is_sequence, args)):
        return tuple(size if _is_sequence(one) else one for one in args), kwargs
    return size, kwargs


def is_users_own(torch: Any, frame: Any) -> bool:
    """Whether a frame is of the user's own source, and no module has led there."""
    if not is_users_file(frame.f_code.co_filename):
        return False
    while frame is not None:
        if isinstance(frame.f_locals.get("self"), torch.nn.Module):
            return False
        frame = frame.f_back
    return True


def rows_of(torch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int | None:
    """Of the first tensor that goes into a model."""
    tensors = (one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor))
    first = next(tensors, None)
    return int(first.shape[0]) if first is not None and first.dim() else None
