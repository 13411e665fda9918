"""What a loss was computed from, as its graph of gradients tells."""

from __future__ import annotations

from collections import deque
from typing import Any

N_NODES = 40
"""How far behind a loss its cross-entropy may lie: label smoothing, scaling and weights come first.
"""


def n_logits(loss: Any) -> int:
    """How many numbers the cross-entropy of a loss goes through; 0 where there is none in sight."""
    waiting, n_seen = deque([loss.grad_fn]), 0
    while waiting and n_seen < N_NODES:
        node = waiting.popleft()
        if node is None:
            continue
        n_seen += 1
        if node.name() == "LogSoftmaxBackward0":
            return int(node._saved_result.numel())
        waiting.extend(before for before, _ in node.next_functions)
    return 0
