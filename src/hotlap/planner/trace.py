"""Run a model's forward once on fake tensors and write down what it does, layer by layer.

`python -m hotlap.planner.trace REQUEST RESULT`, both JSON files: it runs in a process of its own,
which alone imports torch and the user's module. Nothing is allocated and nothing is computed.

The fake tensors are the CPU's: fake CUDA tensors abort torch builds without CUDA. Sizes are the
same; what a CUDA kernel would keep and a CPU kernel would not (cuDNN's statistics) is small.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotlap.errors import UsageError
from hotlap.planner.cuts import cuts_of
from hotlap.planner.layers import Layer, Model, Recomputed
from hotlap.planner.live import checkpointed, watch
from hotlap.planner.tallies import Tally, eager_of
from hotlap.records.codec import from_json, to_json

if TYPE_CHECKING:
    import torch
    from torch import nn

BATCH = 2
"""Batch norms refuse a single sample where its image has become one pixel."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is to be traced, and on what input."""

    factory: str
    arguments: dict[str, Any]
    seq: int | None
    """Tokens of a sequence; None for images."""
    image_size: int | None
    n_channels: int
    autocast: str
    """'bf16', 'fp16', or empty."""
    pure_16bit: bool
    attention_is_causal: bool
    reorders_images: bool = False
    """Convolutions of a GPU copy images that do not lie with their channels last."""


def main() -> None:
    """Trace, and write the model, or one sentence about why not."""
    request_file, result_file = Path(sys.argv[1]), Path(sys.argv[2])
    request = from_json(Request, json.loads(request_file.read_text(encoding="utf-8")), "")
    _leave_values_out()
    try:
        result = {"model": to_json(trace(request))}
    except UsageError as error:
        result = {"error": str(error)}
    result_file.write_text(json.dumps(result), encoding="utf-8")


def _leave_values_out() -> None:
    """For the rest of this process: what weights start from does not matter, sizes do.

    Some of torch's initialisers look at values, which fake tensors do not have. So do models that
    make a list of rates with `linspace`: that one is made in earnest.
    """
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    for name in dir(torch.nn.init):
        if name.endswith("_") and not name.startswith("_"):
            setattr(torch.nn.init, name, lambda tensor, *_, **__: tensor)
    linspace = torch.linspace

    def in_earnest(*args: Any, **kwargs: Any) -> Any:
        with unset_fake_temporarily():
            return linspace(*args, **kwargs)

    torch.linspace = in_earnest


def trace(request: Request) -> Model:
    """Of the module that the factory returns."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    factory = _find(request.factory)
    _check_arguments(request, factory)
    with FakeTensorMode(allow_non_fake_inputs=True), _quiet():
        model = _attempt("could not be made", request, lambda: factory(**request.arguments))
        _check_module(request, model)
        traced: Model = _attempt("could not be traced", request, lambda: _traced(request, model))
        return traced


def _find(path: str) -> Callable[..., Any]:
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise UsageError(f"MODEL is '{path}'; a factory is written package.module:factory")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise UsageError(f"MODEL: {module_name} cannot be imported: {_reason(error)}") from None
    factory = getattr(module, name, None)
    if not callable(factory):
        raise UsageError(f"MODEL: {module_name} has no callable '{name}'")
    return factory  # type: ignore[no-any-return]


def _check_arguments(request: Request, factory: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(factory)
        signature.bind(**request.arguments)
    except ValueError:  # some callables written in C have no signature
        return
    except TypeError as error:
        raise UsageError(
            f"--arg: {request.factory}{signature} does not take these arguments: {error}"
        ) from None


def _check_module(request: Request, model: Any) -> None:
    from torch import nn

    if not isinstance(model, nn.Module):
        raise UsageError(
            f"MODEL: {request.factory} returned {type(model).__name__}; "
            "it has to return an nn.Module"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError(f"MODEL: {request.factory} has no parameter that is trained")


def _attempt(what: str, request: Request, do: Callable[[], Any]) -> Any:
    try:
        return do()
    except Exception as error:
        raise UsageError(
            f"MODEL: {request.factory} {what} ({_reason(error)}); give its sizes instead, or a "
            "factory whose model takes one batch of this shape"
        ) from None


def _reason(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:160] if lines else ''}".rstrip(": ")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What a model prints is not for the result."""
    silence = io.StringIO()
    with contextlib.redirect_stdout(silence), contextlib.redirect_stderr(silence):
        yield


def _traced(request: Request, model: nn.Module) -> Model:
    import torch

    if request.pure_16bit:
        model = _cast(model)
    inputs = _inputs(request, BATCH)
    blocks = find_blocks(model)
    cuts = cuts_of(model, blocks)
    tally = Tally(model, blocks, BATCH, request.attention_is_causal, cuts)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(request.autocast)
    with tally, torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
        output = _logits(_forward(model, inputs))
        tally.begin_loss(output)
        _loss(output, is_autocast=dtype is not None)
    stem, *middle, head = tally.layers()

    def step(batch: int) -> None:
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            output = _logits(_forward(model, _inputs(request, batch)))
            loss = _loss(output, is_autocast=dtype is not None)
        loss.backward()
        for parameter in model.parameters():
            parameter.grad = None

    plain = watch(model, step, request.reorders_images)
    checkpointed(blocks)
    again = watch(model, step, request.reorders_images)
    forward = tally.traffic
    backward = plain.traffic + forward.times(-1)
    n_kernels = sum(layer.n_kernels for layer in (stem, *middle, head))
    return Model(
        name=request.factory,
        unit="images" if request.image_size else "sequences",
        tokens_per_sample=request.seq or 1,
        stem=stem,
        blocks=tuple(middle),
        head=head,
        output_bytes=tally.output_bytes,
        logits_bytes=tally.logits_bytes,
        logits_evaluated_bytes=tally.logits_evaluated_bytes,
        tied_params=0,
        n_heads=_n_heads(middle) if cuts else None,
        n_kv_heads=_n_heads(middle) if cuts else None,
        n_experts=1,
        buffer_bytes=sum(b.numel() * b.element_size() for b in model.buffers()),
        widest_bytes=tally.widest_bytes,
        is_traced=True,
        moments=plain.moments,
        moments_recomputed=again.moments,
        backward_traffic=backward.moved / forward.moved,
        backward_eager=eager_of(backward),
        backward_kernels=(plain.n_kernels - n_kernels) / n_kernels,
        compiled_share=plain.n_compiled / plain.n_kernels,
        recomputed=Recomputed(
            # A model may have no product at all.
            (again.product_flops - plain.product_flops) / (tally.product_flops or 1.0),
            (again.traffic.moved - plain.traffic.moved) / forward.moved,
            (again.n_kernels - plain.n_kernels) / n_kernels,
        ),
    )


def _n_heads(blocks: list[Layer]) -> int | None:
    """What ranks of tensor parallelism have to divide: the heads that all blocks have in common."""
    return gcd(*(one.n_heads for block in blocks for one in block.attentions)) or None


def _cast(model: nn.Module) -> nn.Module:
    """To 16 bits; `.to(dtype)` on a module raises under fake tensors, new parameters do not."""
    import torch
    from torch import nn

    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and parameter.is_floating_point():
                cast = torch.empty(parameter.shape, dtype=torch.bfloat16)
                module._parameters[name] = nn.Parameter(cast, parameter.requires_grad)
        for name, buffer in list(module._buffers.items()):
            if buffer is not None and buffer.is_floating_point():
                module._buffers[name] = torch.empty(buffer.shape, dtype=torch.bfloat16)
    return model


def _inputs(request: Request, batch: int) -> torch.Tensor:
    import torch

    if request.image_size:
        shape = (batch, request.n_channels, request.image_size, request.image_size)
        return torch.empty(shape, dtype=torch.bfloat16 if request.pure_16bit else torch.float32)
    return torch.zeros(batch, request.seq or 1, dtype=torch.long)


def _forward(model: nn.Module, inputs: torch.Tensor) -> Any:
    """Both halves of an encoder-decoder get a batch, the second by its name or as the second."""
    taken = inspect.signature(model.forward).parameters
    if "decoder_input_ids" in taken:
        return model(inputs, decoder_input_ids=inputs)
    needed = [
        one
        for one in taken.values()
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    return model(*([inputs] * max(1, len(needed)))) if len(needed) <= 2 else model(inputs)


def _logits(output: Any) -> torch.Tensor:
    import torch

    logits = getattr(output, "logits", output)
    if isinstance(logits, dict):
        logits = next(iter(logits.values()))
    while isinstance(logits, (tuple, list)) and logits:
        logits = logits[0]
    if not isinstance(logits, torch.Tensor):
        raise TypeError(f"it returned {type(output).__name__} and no tensor")
    return logits


def _loss(output: torch.Tensor, is_autocast: bool) -> torch.Tensor:
    """Cross-entropy over the last dimension, as a classifier or a language model is trained.

    A GPU's autocast takes the logarithms in the output's type and makes an fp32 copy of them; that
    of a CPU, which this runs under, would copy the output first.
    """
    import torch
    from torch.nn import functional as F

    flat = output.flatten(0, -2)
    targets = torch.zeros(flat.shape[0], dtype=torch.long)
    if not is_autocast:
        return F.cross_entropy(flat, targets)
    with torch.autocast("cpu", enabled=False):
        return F.nll_loss(F.log_softmax(flat, -1).float(), targets)


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """What repeats: what the model names itself, else the members of its lists, else its children.

    Of lists within lists the outer ones count: their members are what a pipeline is cut between.
    """
    from torch import nn

    named = getattr(model, "blocks", None)
    if callable(named) and not isinstance(named, nn.Module):
        return list(named())
    found: list[nn.Module] = []
    inside: set[int] = set()
    for module in model.modules():
        if id(module) in inside or not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        members = [child for child in module.children() if any(True for _ in child.parameters())]
        kinds = {type(child) for child in members}
        if len(members) < 2 or len(kinds) > 1 or not any(True for _ in members[0].children()):
            continue
        found += members
        inside |= {id(part) for member in members for part in member.modules()}
    return found or [child for child in model.children() if any(True for _ in child.parameters())]


if __name__ == "__main__":
    main()
