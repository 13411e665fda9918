"""Counts the FLOPs of what runs inside it: torch's counter, with the formulas that it lacks.

An operator that may multiply matrices and has no formula makes the sum unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hotlap.chronometer.cudnn_fakes import FAKES
from hotlap.chronometer.flop_formulas import FORMULAS, UncountedError, multiplies
from hotlap.chronometer.stored_numbers import carry_stored_numbers


class FlopCounter:
    """What was counted, and why the sum is not to be trusted if it is not."""

    def __init__(self) -> None:
        from torch.utils.flop_counter import FlopCounterMode

        self.mode = FlopCounterMode(display=False, custom_mapping=self._formulas())
        self._doubts: list[str] = []

    def total(self) -> float:
        """Raises where an operator could not be counted."""
        if self._doubts:
            raise UncountedError(self._doubts[0])
        return float(self.mode.get_total_flops())

    def ran(self, operator: Any, args: tuple[Any, ...], made: Any) -> None:
        """One operator, after it was decomposed as far as it can be."""
        packet = operator.overloadpacket
        name = packet.__name__
        if packet not in self.mode.flop_registry and multiplies(operator.namespace, name):
            self._doubts.append(f"{operator.namespace}::{name} has no formula")
        carry_stored_numbers(name, args, made)

    def _formulas(self) -> dict[Any, Callable[..., int]]:
        import torch

        aten = torch.ops.aten
        return {
            getattr(aten, name): self._guarded(formula)
            for name, formula in FORMULAS.items()
            if hasattr(aten, name)
        }

    def _guarded(self, formula: Callable[..., int]) -> Callable[..., int]:
        """A formula that raises nothing into the model's code, which might catch it."""

        def count(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
            try:
                return formula(*args, **kwargs)
            except Exception as error:
                self._doubts.append(str(error))
                return 0

        count._get_raw = True  # type: ignore[attr-defined]
        return count


@contextmanager
def counting() -> Iterator[FlopCounter]:
    """Count what runs inside, on fake tensors."""
    counter = FlopCounter()
    # Entered first, the listener hears what the counter passes on.
    with _listener(counter), counter.mode:
        yield counter


def _listener(counter: FlopCounter) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Listener(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            fake = FAKES.get(func.overloadpacket.__name__)
            made = fake(func, *args) if fake else func(*args, **(kwargs or {}))
            counter.ran(func, args, made)
            return made

    return Listener()
