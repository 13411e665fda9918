"""Classes of `__main__` that travel to spawned processes and back, beside a training."""

import multiprocessing
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Point:
    x: float
    y: float


class Points(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Point:
        return Point(index, index * 0.5)


def keep(items: list[Point]) -> list[Point]:
    return items


def mirror(point: Point) -> Point:
    return Point(point.y, point.x)


def main() -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(
        Points(), 4, num_workers=1, collate_fn=keep, multiprocessing_context="spawn"
    )
    for points in loader:
        x = torch.tensor([[p.x, p.y] for p in points])
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        print(type(points[0]).__module__, points, loss.item().hex())
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(mirror, [Point(1, 2), Point(3, 4)]))


if __name__ == "__main__":
    main()
