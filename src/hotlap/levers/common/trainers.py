"""Trainers of frameworks have settings of their own for what some levers do: these are told.

Where such a trainer makes the loop, a lever's edit has no line of the script to be made in.
"""

from __future__ import annotations

from collections.abc import Iterable

from hotlap.levers.common.edits import Edit, tell
from hotlap.levers.common.lever import Lever
from hotlap.levers.common.workload import Seen, Workload

LIGHTNING = {"bf16": 'precision="bf16-mixed"', "fp16": 'precision="16-mixed"'}
TRANSFORMERS = {
    "bf16": "bf16=True",
    "fp16": "fp16=True",
    "tf32": "tf32=True",
    "checkpointing": "gradient_checkpointing=True, "
    'gradient_checkpointing_kwargs={"use_reentrant": False}',
}
OF_LOADERS = {
    "workers": "dataloader_num_workers={value}",
    "pin_memory": "dataloader_pin_memory=True",
    "persistent_workers": "dataloader_persistent_workers=True",
    "prefetch_factor": "dataloader_prefetch_factor={value}",
}
"""For loaders that the Trainer of transformers makes."""


def edits_of(lever: Lever, value: str, workload: Workload) -> tuple[Edit, ...]:
    """The setting of the trainer that does what a lever does, or else the lever's own edits."""
    setting = _setting(lever.name, value, workload)
    return (tell(None, setting),) if setting else lever.edit(value, workload)


def _setting(lever: str, value: str, workload: Workload) -> str:
    trainers = {one.facts.get("trainer") for one in workload.models}
    if trainers == {"lightning"} and lever in LIGHTNING:
        return f"Trainer(..., {LIGHTNING[lever]}), a setting of Lightning's own"
    if trainers != {"transformers"}:
        return ""
    argument = TRANSFORMERS.get(lever, "")
    if lever == "compile" and value != "coordinate-descent":
        argument = f'torch_compile=True, torch_compile_mode="{value}"'
    if lever in OF_LOADERS and _are_the_trainers(workload.loaders):
        argument = OF_LOADERS[lever].format(value=value)
    is_adamw = {one.facts.get("kind") for one in workload.optimizers} == {"AdamW"}
    if lever == "fused_optimizer" and is_adamw and _are_the_trainers(workload.optimizers):
        argument = 'optim="adamw_torch_fused"'
    return f"TrainingArguments(..., {argument})" if argument else ""


def _are_the_trainers(made: Iterable[Seen]) -> bool:
    return {one.facts.get("made_by") for one in made} == {"transformers"}
