"""What the guard compares of the first steps: inputs, gradients, and which parameters move.

In the first update the weights and the batch are the baseline's own, so that a gradient can differ
only by rounding; and however far two trainings drift apart later, they see the same batches, and a
parameter that moves in one moves in the other. Taken in the first steps, which no figure counts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hotlap.levers.common.optimizers import parameters_of

N_UPDATES = 12
"""Not more than the warm-up of a trial, so that no measured step is longer for it."""
N_INPUTS = 40
"""Inputs are summed for longer: a sum stays on the device, and is read at the two numbers' ends."""

Report = Callable[..., None]


class Fingerprints:
    """Reports norms and sums of the first steps, then nothing more."""

    def __init__(self, torch: Any, report: Report) -> None:
        import torch.optim.optimizer as optimizer_module

        self._torch, self._report = torch, report
        self._n_made = 0
        self._inputs: list[Any] = []
        self._sums: dict[int, list[Any]] = {}
        self._parameters: list[float] = []
        """Norms before the update that is being made."""
        self._handles = (
            optimizer_module.register_optimizer_step_pre_hook(self._before),
            optimizer_module.register_optimizer_step_post_hook(self._after),
        )

    def remove(self) -> None:
        """Report no more."""
        for handle in self._handles:
            handle.remove()

    def see_input(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the sum of each tensor that goes into an outermost training call, however deep."""
        is_early = self._n_made < N_INPUTS and module.training
        if not is_early or next(module.parameters(), None) is None:
            return  # a criterion's input is a model's output, and not data
        torch = self._torch
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        with torch.no_grad():
            self._inputs += [_sum(torch, one) for one in leaves if _is_dense(torch, one)]

    def _before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._n_made < N_INPUTS:
            self._sums[self._n_made], self._inputs = self._inputs, []
        if self._n_made < N_UPDATES:
            parameters = parameters_of(optimizer)
            gradients = [p.grad for p in parameters if p.grad is not None]
            self._try(self._n_made, "gradients", lambda: self._norms(gradients))
            self._parameters = []
            with contextlib.suppress(Exception):  # short of memory, for instance: then unknown
                self._parameters = self._norms(parameters)

    def _after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._n_made >= N_INPUTS:
            return
        if self._n_made < N_UPDATES:
            self._try(self._n_made, "moved", lambda: self._moved(parameters_of(optimizer)))
        self._n_made += 1
        if self._n_made in (N_UPDATES, N_INPUTS):
            sums, self._sums = self._sums, {}
            for update, values in sums.items():
                self._try(update, "inputs", partial(_floats, values))

    def _moved(self, parameters: list[Any]) -> list[bool]:
        """Whether each of them is another one than before the update."""
        both = zip(self._parameters, self._norms(parameters), strict=True)
        return [before != after for before, after in both]

    def _try(self, update: int, what: str, take: Callable[[], Sequence[float]]) -> None:
        try:
            self._report(fingerprint=update, rank=_rank(self._torch), **{what: take()})
        except Exception as error:  # a tensor of a kind that has no norm is no reason to stop
            self._report(fingerprint=update, unknown=f"{type(error).__name__}: {error}")

    def _norms(self, tensors: list[Any]) -> list[float]:
        """Root of the sum of squares of each tensor, summed in double precision."""
        if not tensors:
            return []
        with self._torch.no_grad():
            squares = [t.detach().float().square().sum(dtype=self._torch.float64) for t in tensors]
            return [float(value) for value in self._torch.stack(squares).sqrt().tolist()]


def _rank(torch: Any) -> int:
    """0 where there is but one."""
    distributed = torch.distributed
    is_one_of_many = distributed.is_available() and distributed.is_initialized()
    return int(distributed.get_rank()) if is_one_of_many else 0


def _is_dense(torch: Any, value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _sum(torch: Any, tensor: Any) -> Any:
    plain = tensor.detach().resolve_conj()
    numbers = torch.view_as_real(plain) if tensor.is_complex() else plain
    return numbers.sum(dtype=torch.float64)


def _floats(values: list[Any]) -> list[float]:
    return [float(value) for value in values]
