"""A model's parameters, in groups, into the optimizer that the settings ask for.

Matrices (two dimensions and more) and vectors (norms, biases) are two groups, in this order. Muon
has its hidden matrices as a group before them. Torch's own optimizers, whose step costs the host as
much for each group, have one group where all decay alike, and a group for each mesh where tensor
parallelism leaves some parameters on another one. Frozen parameters belong to none. A checkpoint
knows parameters by name, and nothing of groups.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hotlap.errors import UsageError
from hotlap.trainer.optimizers.hidden import hidden_matrices
from hotlap.trainer.optimizers.lamb import Lamb
from hotlap.trainer.optimizers.lars import Lars
from hotlap.trainer.optimizers.lion import Lion
from hotlap.trainer.optimizers.muon import Muon
from hotlap.trainer.optimizers.settings import OptimizerSettings

FUSED_DEVICES = ("cuda", "cpu", "mps", "xpu")
Group = dict[str, Any]


def build_optimizer(model: nn.Module, settings: OptimizerSettings) -> torch.optim.Optimizer:
    """The optimizer over all trained parameters of a model, sharded ones too."""
    groups = _groups(_trained(model), settings)
    match settings.name:
        case "sgd":
            return _sgd(groups, settings)
        case "adamw":
            return _adamw(groups, settings)
        case "lars":
            return _lars(groups, settings)
        case "lamb":
            return _lamb(groups, settings)
        case "lion":
            return Lion(groups, lr=settings.lr, betas=settings.betas)
        case "muon":
            return _muon(_with_hidden(model, groups), settings)


def _sgd(groups: list[Group], settings: OptimizerSettings) -> torch.optim.Optimizer:
    fused = _is_fused(groups, settings)
    optimizer = torch.optim.SGD(
        _as_few_as_can_be(groups),
        lr=settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        fused=fused,
        foreach=not fused,
    )
    if fused and settings.momentum:
        _start_momenta(optimizer)
    return optimizer


def _start_momenta(optimizer: torch.optim.Optimizer) -> None:
    """Momenta of zero, from which the first step is the same as from none.

    Torch's fused SGD (seen in 2.13) makes them in the first step from memory that is not set, where
    they stay so if a gradient scaler skips that step; and it fails on a parameter whose first
    gradient comes later than the others'.
    """
    for group in optimizer.param_groups:
        for param in group["params"]:
            optimizer.state[param]["momentum_buffer"] = torch.zeros_like(
                param, memory_format=torch.preserve_format
            )


def _adamw(groups: list[Group], settings: OptimizerSettings) -> torch.optim.Optimizer:
    fused = _is_fused(groups, settings)
    return torch.optim.AdamW(
        _as_few_as_can_be(groups),
        lr=settings.lr,
        betas=settings.betas,
        eps=settings.eps,
        fused=fused,
        foreach=not fused,
    )


def _lars(groups: list[Group], settings: OptimizerSettings) -> torch.optim.Optimizer:
    return Lars(
        _adapted(groups),
        lr=settings.lr,
        momentum=settings.momentum,
        trust_coefficient=settings.trust_coefficient,
    )


def _lamb(groups: list[Group], settings: OptimizerSettings) -> torch.optim.Optimizer:
    return Lamb(_adapted(groups), lr=settings.lr, betas=settings.betas, eps=settings.eps)


def _muon(groups: list[Group], settings: OptimizerSettings) -> torch.optim.Optimizer:
    return Muon(
        groups,
        lr=settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        betas=settings.betas,
        eps=settings.eps,
    )


def _trained(model: nn.Module) -> list[Tensor]:
    """All parameters that are trained; refuses what no optimizer here can train."""
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) and isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            raise UsageError(
                f"the embedding '{name}' of the model has sparse=True; its gradients have to be "
                "dense, leave sparse out"
            )
    trained = {name: one for name, one in model.named_parameters() if one.requires_grad}
    for name, param in trained.items():
        if param.is_complex():
            raise UsageError(f"the parameter '{name}' of the model is complex; it has to be real")
    if not trained:
        raise UsageError("the model has no parameter that is trained; one has to require gradients")
    return list(trained.values())


def _groups(params: list[Tensor], settings: OptimizerSettings) -> list[Group]:
    """Matrices and vectors, each with its weight decay."""
    decay = settings.weight_decay
    matrices = [one for one in params if one.ndim >= 2]
    vectors = [one for one in params if one.ndim < 2]
    return [
        {"params": matrices, "weight_decay": decay},
        {"params": vectors, "weight_decay": decay if settings.decay_norms else 0.0},
    ]


def _adapted(groups: list[Group]) -> list[Group]:
    """A rate for each layer is for matrices; norms and biases have too few numbers for it."""
    matrices, vectors = groups
    return [matrices | {"adapt": True}, vectors | {"adapt": False}]


def _with_hidden(model: nn.Module, groups: list[Group]) -> list[Group]:
    """The hidden matrices as a group of their own, before the others."""
    matrices, vectors = groups
    hidden = hidden_matrices(model)
    if not hidden:
        raise UsageError(
            "optimizer.name is 'muon'; the model has no hidden matrix (a linear layer, attention "
            "or convolution between its first and its last), use adamw"
        )
    keys = {id(one) for one in hidden}
    others = [one for one in matrices["params"] if id(one) not in keys]
    return [
        matrices | {"params": hidden, "hidden": True},
        matrices | {"params": others, "hidden": False},
        vectors | {"hidden": False},
    ]


def _as_few_as_can_be(groups: list[Group]) -> list[Group]:
    """One group for all that decays alike and that torch's kernels may mix: those of one mesh."""
    alike: dict[Any, list[Tensor]] = {}
    for group in groups:
        for param in group["params"]:
            mesh = getattr(param, "device_mesh", None)
            alike.setdefault((group["weight_decay"], mesh), []).append(param)
    return [{"params": params, "weight_decay": decay} for (decay, _), params in alike.items()]


def _is_fused(groups: list[Group], settings: OptimizerSettings) -> bool:
    """Whether torch's fused kernel is used; refuses where it was asked for and there is none."""
    if settings.fused is False:
        return False
    params = [param for group in groups for param in group["params"]]
    obstacle = _why_not_fused(params, settings.name)
    if settings.fused and obstacle:
        raise UsageError(f"optimizer.fused is true; {obstacle}, leave it out")
    return not obstacle


def _why_not_fused(params: list[Tensor], name: str) -> str:
    devices = sorted({one.device.type for one in params} - set(FUSED_DEVICES))
    if devices:
        return f"torch has no fused optimizer on the device '{devices[0]}'"
    if any(not one.is_floating_point() for one in params):
        return "torch has no fused optimizer for parameters that are no floating-point numbers"
    if name == "sgd" and any(isinstance(one, DTensor) for one in params):
        return "torch has no fused sgd for sharded parameters"
    return ""
