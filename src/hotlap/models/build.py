"""From settings to the model: one of MODELS, or what a factory of the user's own returns."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any

from torch import nn

from hotlap.errors import UsageError
from hotlap.models import gpt, resnet, vit
from hotlap.models.settings import ModelSettings
from hotlap.models.staged import StagedModel


@dataclass(frozen=True, slots=True)
class Known:
    """A reference model and the settings it takes."""

    make: Callable[..., StagedModel]
    takes: tuple[str, ...]


RESNET = ("n_classes", "n_channels", "small_stem", "zero_init_residual")
VIT = ("n_classes", "n_channels", "image_size")
GPT = ("vocab_size", "vocab_multiple", "context", "tied", "dropout")
SIZES = ("n_layers", "n_heads", "width")

MODELS: dict[str, Known] = {
    "resnet18": Known(resnet.resnet18, RESNET),
    "resnet34": Known(resnet.resnet34, RESNET),
    "resnet50": Known(resnet.resnet50, RESNET),
    "resnet101": Known(resnet.resnet101, RESNET),
    "resnet152": Known(resnet.resnet152, RESNET),
    "vit-tiny": Known(vit.vit_tiny, VIT),
    "vit-small": Known(vit.vit_small, VIT),
    "vit-base": Known(vit.vit_base, VIT),
    "vit-large": Known(vit.vit_large, VIT),
    "gpt2-124m": Known(gpt.gpt2_124m, GPT),
    "gpt2-355m": Known(gpt.gpt2_355m, GPT),
    "gpt2-774m": Known(gpt.gpt2_774m, GPT),
    "gpt2-1558m": Known(gpt.gpt2_1558m, GPT),
    "gpt": Known(gpt.GPT, (*GPT, *SIZES)),
}
FOR_ANY = ("name", "image_size")
"""The size of images may stand in any recipe: it is the data's as well."""


def build_model(settings: ModelSettings) -> nn.Module:
    """The model, with weights newly drawn, on torch's default device."""
    if settings.factory:
        _refuse_others(settings, "a factory's model", ("factory", "arguments"))
        return _from_factory(settings.factory, settings.arguments)
    known = MODELS.get(settings.name)
    if known is None:
        raise UsageError(
            f"model.name is '{settings.name}'; there are {', '.join(MODELS)}, "
            "and model.factory for a model of your own"
        )
    _refuse_others(settings, settings.name, (*known.takes, *FOR_ANY))
    chosen = {name: getattr(settings, name) for name in known.takes}
    for name in SIZES:
        if chosen.get(name) == 0:
            raise UsageError(f"model.{name} is not set; {settings.name} has no size of its own")
    return known.make(**chosen)


def _refuse_others(settings: ModelSettings, model: str, taken: Iterable[str]) -> None:
    """A setting without effect is a mistake: better said than passed over."""
    defaults = ModelSettings()
    for name in sorted({field.name for field in fields(settings)} - set(taken)):
        found = getattr(settings, name)
        if found != getattr(defaults, name):
            raise UsageError(
                f"model.{name} is {found!r}, but {model} does not take it: leave it out"
            )


def _from_factory(path: str, arguments: Mapping[str, Any]) -> nn.Module:
    factory = _find_factory(path)
    _check_arguments(path, factory, arguments)
    model = factory(**arguments)
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"model.factory: {path} returned {type(model).__name__}; it has to return an nn.Module"
        )
    return model


def _find_factory(path: str) -> Callable[..., Any]:
    module_name, _, name = path.partition(":")
    if not module_name or not name or module_name.startswith("."):
        raise UsageError(f"model.factory is '{path}'; it is written package.module:factory")
    module = _import(module_name)
    if not hasattr(module, name):
        raise UsageError(f"model.factory: the module {module_name} has no '{name}'")
    factory = getattr(module, name)
    if not callable(factory):
        raise UsageError(
            f"model.factory: {path} is of type {type(factory).__name__}; it has to be callable"
        )
    return factory


def _import(name: str) -> ModuleType:
    """Only what is missing is the settings' fault; other errors are the module's own."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(
                f"model.factory: there is no module '{error.name}'; it has to be installed, "
                "or its folder on PYTHONPATH"
            ) from None
        raise UsageError(f"model.factory: {name} needs a module: {error}") from None
    except ImportError as error:
        raise UsageError(f"model.factory: {name} cannot be imported: {error}") from None


def _check_arguments(path: str, factory: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(factory)
    except ValueError:  # some callables written in C have none
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise UsageError(f"model.arguments does not fit {path}{signature}: {error}") from None
