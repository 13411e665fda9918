"""Errors from inside everything that a training calls: caught, shown, and training goes on.

The last one is not caught.
"""

import traceback
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

PLACES = ("nowhere", "getitem", "worker", "forward", "backward", "optimizer", "nowhere", "scaler")


class Items(Dataset):
    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.fails and index == 5:
            raise IndexError("planted in __getitem__")
        return torch.randn(4), torch.randn(1)


class FailingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise ArithmeticError("planted in backward")


class Inner(nn.Module):
    place = "nowhere"

    def forward(self, x: Tensor) -> Tensor:
        if self.place == "forward":
            raise ValueError("planted in forward")
        return FailingBackward.apply(x) if self.place == "backward" else x


class FailingSGD(torch.optim.SGD):
    place = "nowhere"

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        if self.place in ("optimizer", "scaler"):
            raise RuntimeError("planted in the optimizer")
        return super().step(closure)


def train(place: str, model: nn.Module, optimizer: FailingSGD, scaler: Any) -> None:
    workers = 1 if place == "worker" else 0
    Inner.place = FailingSGD.place = place
    for x, y in DataLoader(Items(place in ("getitem", "worker")), 4, num_workers=workers):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        if place == "scaler":
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        print("loss", loss.item().hex(), flush=True)


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(4, 8), Inner(), nn.Linear(8, 1))
    optimizer = FailingSGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu")
    for place in PLACES:
        print("raise", place, flush=True)
        try:
            train(place, model, optimizer, scaler)
        except Exception:
            traceback.print_exc()
    train("forward", model, optimizer, scaler)


if __name__ == "__main__":
    main()
