"""How a training is cut over GPUs.

dp      replicas; with zero=1 or 2 they share out optimizer state, and gradients
shard   FSDP: parameters, gradients and optimizer state are cut; with dp hybrid sharding
tp      tensor parallel, the innermost; sp=1 cuts what lies between, along the sequence
cp      context parallel: a sequence is cut
pp      pipeline stages; schedule 1f1b, gpipe, zero-bubble, or interleaved with v parts a stage
ep      expert parallel, inside the ranks that see different data
offload, offload_activations=1 put optimizer state and activations in the host's memory
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Literal

from hotlap.errors import UsageError
from hotlap.planner.layers import Model
from hotlap.wording import n_of

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")
SCHEDULES = ("1f1b", "gpipe", "interleaved", "zero-bubble")
SIZES = ("dp", "shard", "tp", "cp", "pp")
OFFLOADS = ("offload", "offload_activations")


@dataclass(frozen=True, slots=True)
class Layout:
    """The number of ranks in each dimension, and the choices that go with them."""

    dp: int = 1
    shard: int = 1
    tp: int = 1
    cp: int = 1
    pp: int = 1
    ep: int = 1
    zero: int = 0
    """0 to 2: what replicas share out. 3 is what shard does."""
    sp: int = 0
    v: int = 1
    """Parts of the model that a rank of an interleaved pipeline holds."""
    schedule: str = "1f1b"
    recompute: Recompute = "none"
    offload: int = 0
    """1: the optimizer's state lies in the host's memory."""
    offload_activations: int = 0
    """1: what blocks keep for backward lies there in the meantime."""
    reshard: int = 1
    """FSDP: 1 lets go of a block after forward and gathers it again for backward."""

    @property
    def world_size(self) -> int:
        """How many GPUs it takes."""
        return self.dp * self.shard * self.tp * self.cp * self.pp

    @property
    def n_data(self) -> int:
        """How many groups of ranks see different samples."""
        return self.dp * self.shard

    @property
    def keeps_gathered(self) -> bool:
        """A pipeline's stages that do not let go gather once a step, and send gradients once."""
        return self.shard > 1 and self.pp > 1 and not self.reshard

    @property
    def sequence_cut(self) -> int:
        """Into how many parts tensor parallelism cuts what lies between its layers."""
        return self.tp if self.sp else 1

    def __str__(self) -> str:
        words = [f"{name}={getattr(self, name)}" for name in SIZES if getattr(self, name) > 1]
        words += [
            f"{name}={getattr(self, name)}" for name in ("ep", "v") if getattr(self, name) > 1
        ]
        words += [f"{name}=1" for name in ("sp", *OFFLOADS) if getattr(self, name)]
        if self.zero:
            words.append(f"zero={self.zero}")
        if self.shard > 1 and not self.reshard:
            words.append("reshard=0")
        if self.pp > 1 and self.schedule in ("gpipe", "zero-bubble"):  # v says the rest
            words.append(f"schedule={self.schedule}")
        return " ".join(words or ["dp=1"])


def parse_layout(text: str, recompute: Recompute) -> Layout:
    """`dp=8 tp=2 pp=4` and so on."""
    names = {field.name: field for field in fields(Layout) if field.name != "recompute"}
    given: dict[str, int | str] = {}
    for word in text.replace(",", " ").split():
        match = re.fullmatch(r"(\w+)=([\w-]+)", word)
        if match is None or match[1] not in names:
            raise UsageError(
                f"--layout: '{word}' was found; it takes words like dp=8 or tp=2, of "
                f"{', '.join(names)}"
            )
        if match[1] in given:
            raise UsageError(f"--layout: {match[1]} is given twice; once is right")
        given[match[1]] = _value(match[1], match[2])
    if given.get("schedule", "interleaved") != "interleaved" and int(given.get("v", 1)) > 1:
        raise UsageError(
            f"--layout: schedule={given['schedule']} has one part a stage; v={given['v']} is for "
            "schedule=interleaved"
        )
    if given.get("schedule") == "interleaved":
        given.setdefault("v", 2)
    elif int(given.get("v", 1)) > 1:
        given["schedule"] = "interleaved"
    return replace(Layout(recompute=recompute), **given)  # type: ignore[arg-type]


def _value(name: str, text: str) -> int | str:
    if name == "schedule":
        if text not in SCHEDULES:
            raise UsageError(f"--layout: schedule={text}; there are {', '.join(SCHEDULES)}")
        return text
    is_yes_or_no = name in ("sp", "reshard", *OFFLOADS)
    least, most = (0, 1) if is_yes_or_no else (0, 2) if name == "zero" else (1, 1_000_000)
    if not text.isdigit() or not least <= int(text) <= most:
        hint = "; stage 3 is written shard=N" if name == "zero" and text == "3" else ""
        raise UsageError(f"--layout: {name}={text}; it has to be {least} to {most}{hint}")
    return int(text)


def refusal(layout: Layout, model: Model, n_gpus: int, batch: int, micro_batch: int) -> str:
    """Why a model cannot be cut like this; empty where it can."""
    checks = (
        _world(layout, n_gpus),
        _heads(layout, model),
        _pipeline(layout, model),
        _experts(layout, model),
        _batch(layout, batch, micro_batch),
        _others(layout, model),
    )
    return next(filter(None, checks), "")


def _world(layout: Layout, n_gpus: int) -> str:
    if layout.world_size == n_gpus:
        return ""
    sizes = " x ".join(f"{name}={getattr(layout, name)}" for name in SIZES)
    return f"--layout: {sizes} is for {n_of(layout.world_size, 'GPU')}; --gpus is {n_gpus}"


def _heads(layout: Layout, model: Model) -> str:
    if layout.tp == 1:
        return ""
    if model.n_heads is None:
        return (
            f"--layout: tp={layout.tp}, but {model.name} has no blocks of attention and linear "
            "layers by whose names a cut is known; tp has to be 1, or the model given by its sizes"
        )
    for what, n in (("heads", model.n_heads), ("key-value heads", model.n_kv_heads or 1)):
        # Fewer key-value heads than ranks are copied; a number that does not divide cannot be.
        if n % layout.tp and (what == "heads" or layout.tp % n):
            return f"--layout: tp={layout.tp} has to divide the {n} {what}"
    return ""


def _pipeline(layout: Layout, model: Model) -> str:
    n_parts = layout.pp * layout.v
    if layout.v > 1 and layout.pp == 1:
        return f"--layout: v={layout.v} needs a pipeline; pp is 1"
    # With several parts a rank, embedding and output layer may be parts of their own.
    if n_parts > len(model.blocks) + (2 if layout.v > 1 else 0):
        return (
            f"--layout: pp={layout.pp}{f' v={layout.v}' if layout.v > 1 else ''} needs "
            f"{n_parts} blocks; {model.name} has {len(model.blocks)}"
        )
    return ""


def _experts(layout: Layout, model: Model) -> str:
    if layout.ep == 1:
        return ""
    if model.n_experts == 1:
        return f"--layout: ep={layout.ep}, but {model.name} has no experts; it has to be 1"
    if model.n_experts % layout.ep:
        return f"--layout: ep={layout.ep} has to divide the {model.n_experts} experts"
    if (layout.n_data * layout.cp) % layout.ep:
        return (
            f"--layout: ep={layout.ep} has to divide dp x shard x cp, which is "
            f"{layout.n_data * layout.cp}"
        )
    return ""


def _batch(layout: Layout, batch: int, micro_batch: int) -> str:
    if batch % (layout.n_data * micro_batch):
        return (
            f"--batch is {batch}; it has to be a multiple of dp x shard x micro-batch, "
            f"{layout.n_data} x {micro_batch}"
        )
    n_micro = batch // (layout.n_data * micro_batch)
    if layout.schedule == "zero-bubble" and n_micro < 2 * layout.pp - 1:
        return (
            f"--layout: schedule=zero-bubble needs at least 2 x pp - 1 = {2 * layout.pp - 1} "
            f"micro-batches; there are {n_micro}"
        )
    if layout.v > 1 and n_micro % layout.pp:
        return (
            f"--layout: an interleaved pipeline needs a multiple of pp={layout.pp} micro-batches; "
            f"there are {n_micro}"
        )
    return ""


def _others(layout: Layout, model: Model) -> str:
    if layout.sp and layout.tp == 1:
        return "--layout: sp=1 needs tensor parallelism; tp is 1"
    if layout.cp > 1 and model.tokens_per_sample % (2 * layout.cp):
        return (
            f"--layout: cp={layout.cp} cuts a sequence into {2 * layout.cp} parts; "
            f"{model.tokens_per_sample} tokens are no multiple of that"
        )
    if layout.zero and layout.shard > 1:
        return f"--layout: zero={layout.zero} and shard={layout.shard} exclude one another"
    return ""
