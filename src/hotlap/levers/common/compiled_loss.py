"""The cross-entropy as one compiled function, where it has so many logits that it takes time.

As a language model has them: the loss reads and writes them several times, in fp32 under autocast;
in a compiled function one pass each way is left. One that is computed inside of a compiled model is
compiled already. It is compiled as the model is: with CUDA graphs, logits and their gradients are
then not copied from one graph's memory to the next one's. Of logits that were given back in fp32 it
takes the half-precision ones, and does the cast itself.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from hotlap.levers.common.edits import Edit, insert_after_import
from hotlap.levers.common.halves import halves
from hotlap.levers.common.later import report_once
from hotlap.levers.common.process import Process
from hotlap.levers.common.workload import Workload

MIN_LOGITS = 2**22
"""Fewer than these (16 MiB in fp32) are read and written in next to no time."""


def compile_loss(torch: Any, process: Process, how: Mapping[str, Any]) -> None:
    """Have every large cross-entropy of a training step computed by a compiled function."""
    functional, did_once = torch.nn.functional, report_once(process)
    original = functional.cross_entropy
    compiled = torch.compile(_frame_around(original), **how)
    of_half = torch.compile(_frame_with_cast(original), **how)

    @functools.wraps(original)
    def cross_entropy(input: Any, *args: Any, **kwargs: Any) -> Any:
        is_inside = torch.compiler.is_compiling()  # of another compiled function, which takes it in
        if is_inside or not _is_worth_it(torch, input):
            return original(input, *args, **kwargs)
        half = halves(torch).behind(input)
        if half is not None:
            did_once("cross_entropy is compiled, of half-precision logits")
            return of_half(half, *args, **kwargs)
        did_once("cross_entropy is compiled")
        return compiled(input, *args, **kwargs)

    process.replace(functional, "cross_entropy", cross_entropy)
    process.replace(halves(torch), "is_wanted", True)


def _is_worth_it(torch: Any, logits: Any) -> bool:
    is_plain = type(logits) is torch.Tensor
    return is_plain and logits.requires_grad and logits.numel() >= MIN_LOGITS


def _frame_around(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that dynamo does not skip, as it does those of torch."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def _frame_with_cast(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same, for a half that stands for the fp32 tensor that it is cast to."""

    def call(half: Any, *args: Any, **kwargs: Any) -> Any:
        return function(half.float(), *args, **kwargs)

    return call


def loss_edits(workload: Workload, how: str) -> tuple[Edit, ...]:
    """Torch's function is compiled, and with it what `nn.CrossEntropyLoss` calls."""
    name = "torch.nn.functional.cross_entropy"
    large = [one for one in workload.backwards if one.facts.get("n_logits", 0) >= MIN_LOGITS]
    return tuple(
        insert_after_import(one.site, f"{name} = torch.compile({name}, {how})") for one in large[:1]
    )
