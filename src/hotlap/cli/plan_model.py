"""The model that `hotlap plan` is asked about: sizes, a config.json, a factory, or a number."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotlap.errors import UsageError
from hotlap.planner.by_params import model_of as model_of_params
from hotlap.planner.config_json import sizes_from_config
from hotlap.planner.emit import Source
from hotlap.planner.layers import Model
from hotlap.planner.precision import find_precision
from hotlap.planner.transformer import Arithmetic, TransformerSizes, transformer

SIZES = ("layers", "hidden", "heads", "ffn", "vocab")


def needed(arguments: argparse.Namespace, name: str) -> Any:
    """An option that has no default, because it decides the answer."""
    check_given(arguments, name)
    return getattr(arguments, name.replace("-", "_"))


def check_given(arguments: argparse.Namespace, *names: str) -> None:
    """Name all that is missing at once."""
    missing = [f"--{n}" for n in names if getattr(arguments, n.replace("-", "_")) is None]
    if len(missing) == 1:
        raise UsageError(f"{missing[0]} is not given; it decides the answer")
    if missing:
        *others, last = missing
        given = f"{', '.join(others)} and {last} are not given"
        raise UsageError(f"{given}; they decide the answer")


def model_of(arguments: argparse.Namespace, precision_name: str) -> tuple[Model, Source]:
    """The model as data, and where it came from."""
    given = [name for name in SIZES if getattr(arguments, name)]
    ways = [bool(arguments.model), bool(arguments.params), bool(given)]
    if sum(ways) != 1:
        raise UsageError(
            "the model is given in one way: MODEL, --params, or --layers --hidden --heads --ffn "
            f"--vocab; {'none' if not any(ways) else 'several'} of them was found"
        )
    is_traced = bool(arguments.model) and not arguments.model.endswith(".json")
    if not is_traced:
        _refuse_what_is_for_factories(arguments)
    if arguments.params:
        return model_of_params(arguments.params), Source(None)
    if is_traced:
        return _traced(arguments, precision_name)
    if arguments.model:
        name, sizes = sizes_from_config(Path(arguments.model))
    else:
        name, sizes = "transformer", _sizes(arguments)
    seq: int = needed(arguments, "seq")
    if sizes.n_positions:
        sizes = replace(sizes, n_positions=max(sizes.n_positions, seq))
    precision = find_precision(precision_name)
    how = Arithmetic(
        precision.element_bytes,
        precision.norm_bytes,
        arguments.attention == "fused",
        arguments.gate,
        arguments.compile,
    )
    model = transformer(name, sizes, seq, how)
    if precision.norm_bytes != precision.element_bytes:
        cast = replace(how, norm_bytes=precision.element_bytes)
        model = replace(model, sharded=transformer(name, sizes, seq, cast))
    return model, Source(sizes, is_compiled=arguments.compile)


def _refuse_what_is_for_factories(arguments: argparse.Namespace) -> None:
    for name in ("image_size", "arg", "channels_last", "fused"):
        if getattr(arguments, name):
            raise UsageError(
                f"--{name.replace('_', '-')} is for a model given as package.module:factory; leave "
                "it out"
            )


def _sizes(arguments: argparse.Namespace) -> TransformerSizes:
    for_experts = ["experts-per-token"] if arguments.experts else []
    check_given(arguments, *SIZES, "seq", *for_experts)
    return TransformerSizes(
        arguments.layers,
        arguments.hidden,
        arguments.heads,
        arguments.ffn,
        arguments.vocab,
        n_kv_heads=arguments.kv_heads or 0,
        is_gated=arguments.gated,
        is_tied=not arguments.untied,
        has_bias=not arguments.no_bias,
        n_positions=0 if arguments.no_bias else 1,
        n_experts=arguments.experts or 1,
        experts_per_token=arguments.experts_per_token or 1,
        n_decoder_layers=arguments.decoder_layers or 0,
        has_dropout=arguments.dropout,
    )


def _traced(arguments: argparse.Namespace, precision_name: str) -> tuple[Model, Source]:
    from hotlap.planner.trace import Request
    from hotlap.planner.tracing import traced

    if bool(arguments.seq) == bool(arguments.image_size):
        raise UsageError("a traced model takes sequences or images: give --seq or --image-size")
    values = _arguments(arguments.arg)
    autocast = {"bf16": "bf16", "fp16": "fp16", "fp8": "bf16"}.get(precision_name, "")
    is_pure = precision_name in ("pure-bf16", "bf16-master", "bf16-master-fp32grad")
    model = traced(
        Request(
            arguments.model,
            values,
            arguments.seq,
            arguments.image_size,
            arguments.channels,
            autocast,
            is_pure,
            attention_is_causal=bool(arguments.seq),
            reorders_images=not (arguments.channels_last or arguments.compile),
        )
    )
    source = Source(
        None,
        arguments.model,
        values,
        arguments.image_size,
        arguments.compile,
        arguments.channels_last,
        model.is_convolutional,
    )
    return model, source


def _arguments(words: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise UsageError(f"--arg is '{word}'; it is written key=value")
        try:
            values[key] = json.loads(text)
        except ValueError:
            values[key] = text
    return values
