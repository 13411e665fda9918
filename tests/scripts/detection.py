"""Images of several sizes, which lie beside each other in a list, and so do their targets."""

import argparse
import json
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

BATCH_SIZE, N_IMAGES = 8, 252


class Pictures(Dataset):
    def __len__(self) -> int:
        return N_IMAGES

    def __getitem__(self, index: int) -> tuple[Tensor, dict[str, Tensor]]:
        generator = torch.Generator().manual_seed(index)
        height, width = torch.randint(32, 48, (2,), generator=generator).tolist()
        image = torch.rand(3, height, width, generator=generator)
        return image, {"boxes": torch.rand(3, 4, generator=generator)}


class Detector(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3)

    def forward(self, images: list[Tensor], targets: list[dict[str, Tensor]]) -> Tensor:
        padded = torch.zeros(len(images), 3, 48, 48)
        for place, image in zip(padded, images, strict=True):
            place[:, : image.shape[1], : image.shape[2]] = image
        boxes = torch.stack([target["boxes"].mean(0) for target in targets])
        return F.smooth_l1_loss(self.body(padded).mean((2, 3)), boxes)


def collate(items: list[Any]) -> tuple[Any, ...]:
    return tuple(zip(*items, strict=True))


def batches_by_hand() -> Iterator[Any]:
    data = Pictures()
    for first in range(0, N_IMAGES, BATCH_SIZE):
        yield collate([data[i] for i in range(first, min(first + BATCH_SIZE, N_IMAGES))])


parser = argparse.ArgumentParser()
parser.add_argument("--without-loader", action="store_true")
args = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
loader = DataLoader(Pictures(), batch_size=BATCH_SIZE, shuffle=True, collate_fn=collate)
model = Detector()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)

steps = samples = 0
for images, targets in batches_by_hand() if args.without_loader else loader:
    loss = model(list(images), list(targets))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
    steps += 1
    samples += len(images)

print(json.dumps({"steps": steps, "samples": samples, "validations": 0, "val_batches": 0}))
