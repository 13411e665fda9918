"""Images of several sizes in one training: progressive resizing, validation in rectangles."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from PIL import Image
from training import TIMEOUT_S, environment, words_of

RECIPE = """
[model]
name = "vit-tiny"
n_classes = 2
image_size = 64

[data]
kind = "folder"
path = "images"
n_workers = 0
rectangular_validation = true

[optimizer]
name = "adamw"
lr = 1e-3

[schedule]
name = "constant"

[loop]
batch = 8
epochs = 3
phases = [{from_epoch = 0, image_size = 32}, {from_epoch = 2, image_size = 48}]

[compute]
device = "cpu"
precision = "fp32"

[output]
log_steps = 1
"""
N_A_CLASS = 16


def make_images(folder: Path) -> None:
    """Red ones and blue ones, of several shapes and shades."""
    for part in ("train", "val"):
        for name, channel in (("red", 0), ("blue", 2)):
            (folder / part / name).mkdir(parents=True)
            for i in range(N_A_CLASS):
                colour = [20, 20, 20]
                colour[channel] = 120 + 8 * i
                size = ((64, 64), (128, 64), (64, 110))[i % 3]
                Image.new("RGB", size, tuple(colour)).save(folder / part / name / f"{i}.png")


def train(folder: Path, *changes: str) -> subprocess.CompletedProcess[str]:
    (folder / "recipe.toml").write_text(RECIPE)
    make_images(folder / "images")
    return subprocess.run(
        words_of("-m", "hotlap.trainer", "recipe.toml", *changes),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


def test_a_vit_learns_with_growing_images_and_is_validated_in_rectangles(tmp_path: Path) -> None:
    done = train(tmp_path)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "training" / "log.jsonl").read_text().splitlines()
    figures = [json.loads(line) for line in lines]
    validations = [one for one in figures if one["part"] == "validation"]
    assert len(validations) == 3
    assert validations[-1]["top1"] == 1.0
    assert validations[-1]["loss"] < validations[0]["loss"] < 1.0
    assert len(figures) - 3 == 3 * 2 * N_A_CLASS // 8


@pytest.mark.parametrize("size", [40, 100])
def test_a_size_that_patches_do_not_fill_is_refused_at_the_start(tmp_path: Path, size: int) -> None:
    done = train(tmp_path, f"phases=[{{from_epoch=1, image_size={size}}}]")
    assert done.returncode == 2
    sentence = f"hotlap train: loop.phases: images of {size} pixels are for no ViT of patches of 16"
    assert sentence in done.stderr
    assert not (tmp_path / "training").exists()
