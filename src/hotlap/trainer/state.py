"""The state of a training as named tensors, whole or cut over ranks, and back.

    model.<name>                parameters and buffers
    optimizer.<name>.<what>     what the optimizer keeps for a parameter
    average.<name>              the averaged weights
    scaler.<what>               of the gradient scaler
    random.<rank>.<device>      random generators of a rank

Names are those of the model alone, whatever it is wrapped in: so that a checkpoint of two ranks can
be read by four, or by one. What settings and the step determine (learning rates) is not kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from hotlap.trainer.checkpoint import Tensors
from hotlap.trainer.ema import Ema


def model_tensors(model: nn.Module) -> Tensors:
    """Parameters and buffers by name."""
    return {f"model.{name}": tensor for name, tensor in get_model_state_dict(model).items()}


def put_model(model: nn.Module, tensors: Tensors) -> None:
    """Give a model the tensors of a checkpoint."""
    set_model_state_dict(model, _part(tensors, "model."), options=StateDictOptions(strict=True))


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensors:
    """What an optimizer keeps, by the name of the parameter; made with zeros if it is new."""
    state = get_optimizer_state_dict(model, optimizer)["state"]
    return {
        f"optimizer.{name}.{what}": value
        for name, kept in state.items()
        for what, value in kept.items()
        if isinstance(value, torch.Tensor)
    }


def put_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Tensors) -> None:
    """Give an optimizer what a checkpoint kept of it."""
    document: dict[str, Any] = get_optimizer_state_dict(model, optimizer)
    loaded = _part(tensors, "optimizer.")
    for name, kept in document["state"].items():
        for what in kept:
            if f"{name}.{what}" in loaded:
                kept[what] = loaded[f"{name}.{what}"]
    set_optimizer_state_dict(model, optimizer, document)


def average_tensors(average: Ema) -> Tensors:
    """The averaged weights, and the buffers beside them."""
    return {
        **{f"average.parameters.{name}": one for name, one in average.averages.items()},
        **{f"average.buffers.{name}": one for name, one in average.buffers.items()},
    }


def put_average(average: Ema, tensors: Tensors, step: int) -> None:
    """Give an average what a checkpoint of this step kept of it."""
    document = {
        "n_steps": step,
        "n_averaged": step // average.settings.every,
        "averages": _part(tensors, "average.parameters."),
        "buffers": _part(tensors, "average.buffers."),
    }
    average.load_state_dict(document)


def scaler_tensors(scaler: torch.amp.GradScaler) -> Tensors:
    """The scale and how long it has been good."""
    state = scaler.state_dict()
    return {
        f"scaler.{name}": torch.tensor(float(state[name]), dtype=torch.float64)
        for name in ("scale", "_growth_tracker")
        if name in state
    }


def put_scaler(scaler: torch.amp.GradScaler, tensors: Tensors) -> None:
    """Give a scaler the scale of a checkpoint."""
    loaded = _part(tensors, "scaler.")
    if loaded:
        tracker = int(loaded["_growth_tracker"])
        document = {**scaler.state_dict(), "scale": float(loaded["scale"])}
        scaler.load_state_dict({**document, "_growth_tracker": tracker})


def random_tensors(rank: int, device: torch.device) -> Tensors:
    """The state of this rank's generators."""
    tensors = {f"random.{rank}.cpu": torch.get_rng_state()}
    if device.type == "cuda":
        tensors[f"random.{rank}.cuda"] = torch.cuda.get_rng_state(device)
    return tensors


def put_random(rank: int, device: torch.device, tensors: Tensors) -> None:
    """Set this rank's generators back."""
    torch.set_rng_state(tensors[f"random.{rank}.cpu"])
    if device.type == "cuda":
        torch.cuda.set_rng_state(tensors[f"random.{rank}.cuda"], device)


def _part(tensors: Tensors, prefix: str) -> dict[str, Any]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
