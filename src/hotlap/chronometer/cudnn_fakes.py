"""What cuDNN's recurrent operators make of fake tensors.

torch tells the shapes of the forward only, and leaves out the buffer that the backward asks for.
Remove this where torch registers both for fake tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def _forward(operator: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    *made, reserve, buffer = operator(*args)
    return (*made, reserve, reserve if buffer is None else buffer)


def _backward(
    _operator: Callable[..., Any],
    given: Any,
    weights: Sequence[Any],
    _stride: int,
    _buffer: Any,
    states: Any,
    cells: Any,
    *_: Any,
) -> tuple[Any, ...]:
    like = given.new_empty
    of_cells = like(0) if cells is None else like(cells.shape)
    of_weights = [like(weight.shape) for weight in weights]
    return like(given.shape), like(states.shape), of_cells, of_weights


FAKES: dict[str, Callable[..., tuple[Any, ...]]] = {
    "_cudnn_rnn": _forward,
    "_cudnn_rnn_backward": _backward,
}
"""By name: given the operator and its arguments."""
