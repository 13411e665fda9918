"""Edits where a framework trains: its own settings, and no line that its code makes loaders in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from lever_runs import BY_NAME, is_whole, seen_in_trial
from running import SCRIPTS

from hotlap.levers.common.edits import describe
from hotlap.levers.common.trainers import edits_of
from hotlap.levers.common.workload import Seen, Site, Workload

OF_TRANSFORMERS = {
    ("bf16", "autocast"): "bf16=True",
    ("fp16", "autocast"): "fp16=True",
    ("tf32", "high"): "tf32=True",
    ("compile", "max-autotune"): 'torch_compile=True, torch_compile_mode="max-autotune"',
    ("workers", "2"): "dataloader_num_workers=2",
    ("pin_memory", "on"): "dataloader_pin_memory=True",
    ("persistent_workers", "on"): "dataloader_persistent_workers=True",
    ("prefetch_factor", "4"): "dataloader_prefetch_factor=4",
    ("fused_optimizer", "on"): 'optim="adamw_torch_fused"',
}


def told(workload: Workload, lever: str, value: str) -> list[str]:
    return [describe(edit) for edit in edits_of(BY_NAME[lever], value, workload)]


@pytest.fixture(scope="module")
def of_transformers(tmp_path_factory: pytest.TempPathFactory) -> Workload:
    return seen_in_trial(tmp_path_factory.mktemp("hf") / "seen", SCRIPTS / "hf_trainer.py")


@pytest.mark.parametrize(("lever", "value"), OF_TRANSFORMERS)
def test_the_trainer_of_transformers_has_settings_of_its_own(
    of_transformers: Workload, lever: str, value: str
) -> None:
    words = f"TrainingArguments(..., {OF_TRANSFORMERS[lever, value]})"
    assert told(of_transformers, lever, value) == [words]


def test_the_arguments_of_a_trainer_are_those_that_it_knows() -> None:
    from transformers import TrainingArguments

    names = {text.split("=")[0] for text in OF_TRANSFORMERS.values()} | {"torch_compile_mode"}
    names |= {"gradient_checkpointing", "gradient_checkpointing_kwargs"}
    assert names <= TrainingArguments.__dataclass_fields__.keys()


def test_what_the_script_makes_itself_is_edited_there(of_transformers: Workload) -> None:
    own = Seen(Site("train.py", 7), {**of_transformers.loaders[0].facts, "made_by": ""})
    words = told(replace(of_transformers, loaders=(own,)), "workers", "2")
    assert words == ["train.py:7  DataLoader(..., num_workers=2) where the DataLoader is made"]
    words = told(replace(of_transformers, models=()), "bf16", "autocast")
    assert not any("TrainingArguments" in one for one in words)


def test_half_precision_is_a_setting_of_lightning(tmp_path: Path) -> None:
    workload = seen_in_trial(tmp_path / "seen", SCRIPTS / "lightning_fit.py")
    for lever, precision in (("bf16", "bf16-mixed"), ("fp16", "16-mixed")):
        words = f'Trainer(..., precision="{precision}"), a setting of Lightning\'s own'
        assert told(workload, lever, "autocast") == [words]


def test_a_loader_that_accelerate_makes_of_the_scripts_is_not_edited(tmp_path: Path) -> None:
    workload = seen_in_trial(tmp_path / "seen", SCRIPTS / "accelerate_loop.py")
    edits = edits_of(BY_NAME["workers"], "2", workload)
    assert [one.facts["made_by"] for one in workload.loaders] == [""]
    assert is_whole(edits)
    assert len(edits) == 1
