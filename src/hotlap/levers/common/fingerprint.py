"""Norms of gradients and parameters in the first updates: what the guard compares.

In the first update the weights and the batch are the baseline's own, so that a gradient can differ
only by rounding. Taken in the first steps, which no figure counts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

N_UPDATES = 3


class Hooks:
    """What was hooked in; removed by a test that trains more than once in a process."""

    def __init__(self, *handles: Any) -> None:
        self._handles = handles

    def remove(self) -> None:
        """Report no more."""
        for handle in self._handles:
            handle.remove()


def take_fingerprints(torch: Any, report: Callable[..., None]) -> Hooks:
    """Report the norms before and after the first updates, then nothing more."""
    import torch.optim.optimizer as optimizer_module

    n_made = 0

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        if n_made >= N_UPDATES:
            return
        try:
            gradients = [p.grad for p in _parameters(optimizer) if p.grad is not None]
            report(fingerprint=n_made, gradients=_norms(torch, gradients))
        except Exception as error:
            report(fingerprint=n_made, unknown=f"{type(error).__name__}: {error}")

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal n_made
        if n_made >= N_UPDATES:
            return
        try:
            report(fingerprint=n_made, parameters=_norms(torch, _parameters(optimizer)))
        except Exception as error:
            report(fingerprint=n_made, unknown=f"{type(error).__name__}: {error}")
        n_made += 1

    return Hooks(
        optimizer_module.register_optimizer_step_pre_hook(before),
        optimizer_module.register_optimizer_step_post_hook(after),
    )


def _parameters(optimizer: Any) -> list[Any]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _norms(torch: Any, tensors: list[Any]) -> list[float]:
    """Norms in double precision of the sum of squares, one number a tensor."""
    if not tensors:
        return []
    with torch.no_grad():
        squares = [t.detach().float().square().sum(dtype=torch.float64) for t in tensors]
        return [float(value) for value in torch.stack(squares).sqrt().tolist()]
