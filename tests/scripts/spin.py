"""Busy waits of a known length, and a ledger of how long each of them really took."""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

PHASES = ("data", "forward", "backward", "optimizer", "other")


def spin(milliseconds: float) -> float:
    """Keep the core busy for so long; return the seconds that really went by."""
    start = now = time.perf_counter_ns()
    end = start + round(milliseconds * 1e6)
    while now < end:
        now = time.perf_counter_ns()
    return (now - start) / 1e9


class Ledger:
    """Spins where it is told to, and sums what that took for each step and validation pass."""

    def __init__(self, milliseconds: dict[str, float]) -> None:
        self.milliseconds = milliseconds
        self.current = dict.fromkeys(PHASES, 0.0)
        self.steps: list[dict[str, float]] = []
        self.passes: list[float] = []

    def spin(self, phase: str) -> None:
        self.current[phase] += spin(self.milliseconds[phase])

    def end_step(self) -> None:
        self.steps.append(self.current)
        self.current = dict.fromkeys(PHASES, 0.0)

    @contextmanager
    def validation(self) -> Iterator[None]:
        """What spins inside counts for the validation pass, not for a step."""
        training, self.current = self.current, dict.fromkeys(PHASES, 0.0)
        yield
        self.passes.append(sum(self.current.values()))
        self.current = training

    def report(self, without: tuple[str, ...] = ()) -> None:
        planted = {p: [s[p] for s in self.steps] for p in PHASES if p not in without}
        result: dict[str, Any] = {"steps": len(self.steps), "planted": planted}
        if self.passes:
            result["validation"] = self.passes
        print(json.dumps(result))


class SpinBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ledger: Ledger) -> Tensor:
        ctx.ledger = ledger
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        ctx.ledger.spin("backward")
        return grad, None


class SpinNet(nn.Module):
    """One small layer that spins in its forward and in its backward."""

    def __init__(self, ledger: Ledger, outputs: int = 1) -> None:
        super().__init__()
        self.ledger = ledger
        self.layer = nn.Linear(4, outputs)

    def forward(self, x: Tensor) -> Tensor:
        self.ledger.spin("forward")
        return SpinBackward.apply(self.layer(x), self.ledger)


class SpinSGD(torch.optim.SGD):
    def __init__(self, params: Any, ledger: Ledger) -> None:
        super().__init__(params, lr=0.01)
        self.ledger = ledger

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        result = super().step(closure)
        self.ledger.spin("optimizer")
        return result


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Add the options of every planted script; `ledger` of the result spins by them."""
    for phase, default in zip(PHASES, (2, 3, 5, 2, 1), strict=True):
        parser.add_argument(f"--{phase}", type=float, default=default, metavar="MS")
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    args.ledger = Ledger({phase: getattr(args, phase) for phase in PHASES})
    return args
