"""Images that stay bytes, with the real torchvision and on a real device."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

SCRIPT = """
import argparse
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.transforms import v2

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
PIPELINES = {
    "first": transforms.Compose([
        transforms.RandomResizedCrop(32), transforms.ToTensor(), transforms.Normalize(MEAN, STD),
    ]),
    "first, erased": transforms.Compose([
        transforms.RandomResizedCrop(32), transforms.ToTensor(), transforms.Normalize(MEAN, STD),
        transforms.RandomErasing(0.5),
    ]),
    "second": v2.Compose([
        v2.ToImage(), v2.RandomResizedCrop(32), v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD),
    ]),
    "second, erased": v2.Compose([
        v2.ToImage(), v2.RandomResizedCrop(32), v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(MEAN, STD), v2.RandomErasing(1.0),
    ]),
}


class Pictures(Dataset):
    def __init__(self, name):
        self.name = name

    def __len__(self):
        return 128

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        pixels = torch.randint(0, 256, (40, 50, 3), generator=generator, dtype=torch.uint8)
        torch.manual_seed(index)  # the same crops, whichever process makes them
        return PIPELINES[self.name](Image.fromarray(pixels.numpy())), index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("pipeline")
    parser.add_argument("--move", default="to")
    arguments = parser.parse_args()
    torch.backends.cudnn.deterministic = True
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    ).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, labels in DataLoader(Pictures(arguments.pipeline), batch_size=8):
        images = images.cuda() if arguments.move == "cuda" else images.to("cuda")
        loss = nn.functional.cross_entropy(model(images), labels.to("cuda"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(repr((loss.item(), images.double().sum().item())), flush=True)


if __name__ == "__main__":
    main()
"""


@pytest.fixture
def kind() -> Any:
    from hotlap.levers.common.palette import image_class

    return image_class(torch)


def trained(folder: Path, *words: str) -> tuple[list[str], str]:
    """The losses and sums that the script prints, and what hotlap tells."""
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [line for line in done.stdout.splitlines() if line.startswith("(")], done.stderr


@pytest.mark.parametrize("move", ["to", "cuda"])
@pytest.mark.parametrize("pipeline", ["first", "second", "first, erased", "second, erased"])
def test_a_training_is_the_same_to_the_last_bit(tmp_path: Path, pipeline: str, move: str) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = ("train.py", pipeline, "--move", move)
    plain, _ = trained(tmp_path, *command)
    assert len(plain) == 16
    for others in ("workers=2,pin_memory=on", "workers=2,start_method=spawn,device_prefetch=on"):
        levers = f"uint8_images=on,{others}"
        changed, told = trained(tmp_path, "-m", "hotlap", "run", "--levers", levers, *command)
        assert changed == plain
        if "erased" not in pipeline:
            assert "images become floats on the device" in told


def test_every_byte_is_the_same_float_on_the_device(kind: Any) -> None:
    from hotlap.levers.common.palette import palette_of

    everything = torch.arange(256, dtype=torch.uint8).view(1, 1, 256).repeat(3, 1, 1)
    floats = everything.float().div(255)
    floats = floats.sub(torch.tensor(MEAN).view(3, 1, 1)).div(torch.tensor(STD).view(3, 1, 1))
    image = kind(everything.movedim(0, -1).contiguous(), palette_of(torch, floats))
    pinned = image.pin_memory()
    assert pinned.is_pinned()
    for moved in (image.to("cuda"), image.cuda(), pinned.to("cuda", non_blocking=True)):
        assert moved.is_cuda
        assert torch.equal(moved.cpu(), floats)
    half = image.to("cuda", torch.float16)
    assert torch.equal(half.cpu(), floats.to(torch.float16))
