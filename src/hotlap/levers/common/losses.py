"""What a loss was computed from, as its graph of gradients tells."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

N_NODES = 40
"""How far behind a loss its cross-entropy may lie: label smoothing, scaling and weights come first.
"""


def n_logits(loss: Any) -> int:
    """How many numbers the cross-entropy of a loss goes through; 0 where there is none in sight."""
    nodes = (node for node in _behind(loss) if node.name() == "LogSoftmaxBackward0")
    return next((int(node._saved_result.numel()) for node in nodes), 0)


def is_of_probabilities(loss: Any) -> bool:
    """Whether a loss is a binary cross-entropy of probabilities, which autocast refuses on GPUs."""
    return any(node.name() == "BinaryCrossEntropyBackward0" for node in _behind(loss))


def _behind(loss: Any) -> Iterator[Any]:
    """The nodes of a loss's graph, the nearest first."""
    waiting, n_seen = deque([loss.grad_fn]), 0
    while waiting and n_seen < N_NODES:
        node = waiting.popleft()
        if node is None:
            continue
        n_seen += 1
        yield node
        waiting.extend(before for before, _ in node.next_functions)
