"""Keep torch.compile from looking at the chronometer's own frames.

Inside a compiled function dynamo looks at every frame that Python starts, also those that a mark
starts after a graph break: it would compile them, break on them, and warn about them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any


def hide_from_dynamo(torch: Any, package: str) -> None:
    """Have all functions of a package's loaded modules run as they are."""
    eval_frame = torch._C._dynamo.eval_frame
    if hasattr(eval_frame, "set_code_exec_strategy"):
        skip = eval_frame._FrameAction.SKIP
        strategy = eval_frame._FrameExecStrategy(skip, skip)
        for code in _codes(package):
            eval_frame.set_code_exec_strategy(code, strategy)
    else:  # torch before 2.7
        for code in _codes(package):
            eval_frame.skip_code(code)


def _codes(package: str) -> Iterator[CodeType]:
    for name, module in list(sys.modules.items()):
        if name.startswith(package) and module is not None:
            for value in list(vars(module).values()):
                yield from _codes_of(value, name)


def _codes_of(value: Any, module: str) -> Iterator[CodeType]:
    if isinstance(value, FunctionType) and value.__module__ == module:
        yield from _with_nested(value.__code__)
    elif isinstance(value, type) and value.__module__ == module:
        for member in vars(value).values():
            plain = getattr(member, "__func__", member)
            if isinstance(plain, FunctionType):
                yield from _with_nested(plain.__code__)


def _with_nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_nested(constant)
