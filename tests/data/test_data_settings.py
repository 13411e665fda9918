"""Settings that cannot be used are refused in one sentence that names the key."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from hotlap.data.settings import (
    DataSettings,
    check_settings,
    chosen_workers,
    val_ratio_of,
)
from hotlap.errors import UsageError


def test_the_defaults_can_be_used() -> None:
    check_settings(DataSettings())


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"kind": "webdataset"}, "data.kind"),
        ({"kind": "folder"}, "data.path"),
        ({"kind": "tokens"}, "data.path"),
        ({"n_workers": -2}, "data.n_workers"),
        ({"prefetch_factor": 0}, "data.prefetch_factor"),
        ({"n_samples": 0}, "data.n_samples"),
        ({"context": 0}, "data.context"),
        ({"image_size": -1}, "data.image_size"),
        ({"val_resize": 200}, "data.val_resize"),
        ({"rectangular_validation": True}, "data.rectangular_validation"),
        ({"random_crop_scale": (0.5, 0.2)}, "data.random_crop_scale"),
        ({"random_crop_scale": (0.0, 1.0)}, "data.random_crop_scale"),
        ({"mean": (0.5,)}, "data.std"),
        ({"mean": (0.5,), "std": (0.0,)}, "data.std"),
        ({"randaugment_magnitude": 31}, "data.randaugment_magnitude"),
        ({"random_erasing": 1.5}, "data.random_erasing"),
        ({"mixup": -0.1}, "data.mixup"),
        ({"cutmix": 1.0, "drop_last": False}, "data.drop_last"),
        ({"tokens_per_batch": 4096}, "data.tokens_per_batch"),
        ({"kind": "tokens", "path": "x", "tokens_per_batch": 512}, "data.tokens_per_batch"),
    ],
)
def test_what_cannot_be_used_is_named(wrong: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=f"^{named} is .*; it has to be "):
        check_settings(replace(DataSettings(), **wrong))  # type: ignore[arg-type]


def test_the_centre_keeps_224_of_256_unless_said_otherwise() -> None:
    assert val_ratio_of(DataSettings()) == 224 / 256
    assert val_ratio_of(DataSettings(image_size=160, val_resize=200)) == 0.8


def test_workers_are_chosen_from_the_cpus_of_this_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(12)))
    torchrun = {"TORCHELASTIC_RUN_ID": "x", "LOCAL_WORLD_SIZE": "4"}
    assert chosen_workers(DataSettings(), {}) == 8
    assert chosen_workers(DataSettings(), torchrun) == 3
    assert chosen_workers(DataSettings(), {**torchrun, "LOCAL_WORLD_SIZE": "48"}) == 1
    assert chosen_workers(DataSettings(n_workers=5), torchrun) == 5
    assert chosen_workers(DataSettings(n_workers=0), {}) == 0
