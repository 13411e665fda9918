"""A plan that can be run: a recipe for the reference trainer, and the line to submit it.

What the trainer does not have is said in one sentence, and nothing is written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import ceil
from typing import Any

from hotlap.errors import UsageError
from hotlap.planner.layout import Layout
from hotlap.planner.transformer import TransformerSizes
from hotlap.records.plan import Plan

PRECISIONS = ("fp32", "fp32-strict", "tf32", "fp16", "bf16", "pure-bf16", "fp8")
OPTIMIZERS = {
    "sgd": "sgd",
    "sgd-momentum": "sgd",
    "adamw": "adamw",
    "lion": "lion",
    "lars": "lars",
    "lamb": "lamb",
    "muon": "muon",
}


@dataclass(frozen=True, slots=True)
class Source:
    """Where the model came from: its sizes, or a factory; and how its training is written."""

    sizes: TransformerSizes | None
    factory: str = ""
    arguments: dict[str, Any] | None = None
    image_size: int | None = None
    is_compiled: bool = False
    is_channels_last: bool = False
    is_convolutional: bool = False


def recipe_text(plan: Plan, layout: Layout, source: Source) -> str:
    """A recipe of the reference trainer, as TOML."""
    _check(plan, layout, source)
    tables = {
        "model": _model(plan, layout, source),
        "data": _data(plan, source),
        "optimizer": _optimizer(plan),
        "loop": _loop(plan, layout, source),
        "compute": _compute(plan, layout, source),
        "mesh": _mesh(plan, layout),
    }
    head = (
        f"# {plan.model.name} on {plan.cluster.gpus} {plan.cluster.gpu}: {plan.layout}; planned "
        f"{plan.step_s.value:.3g} s a step"
    )
    return "\n".join([head, *(line for name in tables for line in _table(name, tables[name]))])


def _table(name: str, values: dict[str, Any]) -> list[str]:
    return [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in values.items()), ""]


def _toml(value: Any) -> str:
    """A JSON value is a TOML value for words, numbers, true and false; tables are not."""
    if isinstance(value, dict):
        inside = ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items())
        return f"{{ {inside} }}"
    return json.dumps(value)


def submit_line(plan: Plan, recipe: str) -> str:
    """The command that queues it; hours are those of the upper end, and a tenth more."""
    hours = f" --hours {max(1, ceil(plan.days.high * 24 * 1.1))}" if plan.days else ""
    cluster = plan.cluster
    where = f"--cluster {cluster.profile} " if cluster.profile else ""
    kind = cluster.profile_gpu or cluster.gpu
    return f"hotlap submit {where}--gpu {kind} --gpus {cluster.gpus}{hours} hotlap train {recipe}"


def trainer_lacks(layout: Layout) -> str:
    """What of a layout the reference trainer does not have; empty where it has all."""
    wants = {
        "cp": layout.cp > 1,
        "ep": layout.ep > 1,
        "zero": layout.zero > 0,
        "offload": layout.offload > 0,
        "offload_activations": layout.offload_activations > 0,
        "reshard=0": layout.shard > 1 and not layout.reshard,
        "sp with pp": bool(layout.sp) and layout.pp > 1,
        "an interleaved pipeline with dp or shard": layout.v > 1 and layout.n_data > 1,
        "recompute=selective": layout.recompute == "selective",
        f"v={layout.v}": layout.v > 2,
        "schedule=zero-bubble": layout.schedule == "zero-bubble",
    }
    return next((name for name, wanted in wants.items() if wanted), "")


def _check(plan: Plan, layout: Layout, source: Source) -> None:
    missing = trainer_lacks(layout)
    if missing:
        raise UsageError(
            f"--emit: the reference trainer has no {missing}; choose a --layout without it"
        )
    if plan.training.precision == "fp32" and source.is_convolutional:
        raise UsageError(
            "--emit: --precision is fp32, with convolutions in TF32; the reference trainer has all "
            "or nothing of it: choose tf32 or fp32-strict"
        )
    if plan.training.precision not in PRECISIONS:
        raise UsageError(
            f"--emit: the reference trainer has no precision {plan.training.precision}; it has "
            f"{', '.join(PRECISIONS)}"
        )
    if plan.training.optimizer not in OPTIMIZERS:
        raise UsageError(
            f"--emit: the reference trainer has no optimizer {plan.training.optimizer}; it has "
            f"{', '.join(OPTIMIZERS)}"
        )


def _model(plan: Plan, layout: Layout, source: Source) -> dict[str, Any]:
    if source.factory:
        return {"factory": source.factory} | (
            {"arguments": source.arguments} if source.arguments else {}
        )
    sizes = source.sizes
    if sizes is None or sizes.n_decoder_layers or sizes.is_gated or sizes.n_experts > 1:
        raise UsageError(
            f"--emit: the reference trainer's `gpt` is of GPT-2's shape, {plan.model.name} is not; "
            "give the model as package.module:factory"
        )
    if sizes.ffn != 4 * sizes.hidden or sizes.n_kv_heads not in (0, sizes.n_heads):
        raise UsageError(
            "--emit: the reference trainer's `gpt` has a feed-forward part four times as wide as "
            "the rest and as many key-value heads as heads; these sizes have not"
        )
    return {
        "name": "gpt",
        "n_layers": sizes.n_layers,
        "n_heads": sizes.n_heads,
        "width": sizes.hidden,
        "vocab_size": sizes.vocab,
        "context": plan.model.tokens_per_sample,
        "tied": sizes.is_tied and layout.pp == 1,
        "dropout": 0.1 if sizes.has_dropout else 0.0,
    }


def _data(plan: Plan, source: Source) -> dict[str, Any]:
    if plan.model.unit == "images":
        return {"kind": "synthetic", "image_size": source.image_size}
    return {"kind": "synthetic", "context": plan.model.tokens_per_sample}


def _optimizer(plan: Plan) -> dict[str, Any]:
    name = plan.training.optimizer
    momentum = {"sgd": 0.0, "sgd-momentum": 0.9}.get(name)
    return {"name": OPTIMIZERS[name]} | ({} if momentum is None else {"momentum": momentum})


def _loop(plan: Plan, layout: Layout, source: Source) -> dict[str, Any]:
    training = plan.training
    is_pipeline = layout.pp > 1
    loop: dict[str, Any] = {
        "task": "images" if plan.model.unit == "images" else "text",
        "batch": training.micro_batch * (training.micro_batches if is_pipeline else 1),
        "accumulate": 1 if is_pipeline else training.micro_batches,
    }
    if plan.total_samples:
        loop["steps"] = ceil(plan.total_samples / training.batch)
    return loop


def _compute(plan: Plan, layout: Layout, source: Source) -> dict[str, Any]:
    compute: dict[str, Any] = {"precision": plan.training.precision.removesuffix("-strict")}
    if layout.recompute == "full":
        compute["checkpoint_blocks"] = 1
    if source.is_channels_last and plan.model.unit == "images":
        compute["channels_last"] = True
    if source.is_compiled:
        compute["compile"] = "default"
    return compute


def _mesh(plan: Plan, layout: Layout) -> dict[str, Any]:
    mesh: dict[str, Any] = {name: getattr(layout, name) for name in ("pp", "dp", "shard", "tp")}
    if layout.sp:
        mesh["sequence_parallel"] = True
    if layout.pp > 1:
        mesh["schedule"] = layout.schedule
        mesh["micro_batches"] = plan.training.micro_batches
    return mesh
