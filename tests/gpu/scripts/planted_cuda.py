"""Device time of known length in each phase, measured by the script's own events."""

import argparse
import json
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--ms", type=float, default=4.0)
args = parser.parse_args()

torch.manual_seed(0)
CYCLES = int(args.ms * 1.5e6)
ledger: dict[str, list] = {name: [] for name in ("forward", "backward", "optimizer", "other")}
fetches: list[float] = []
copies: list[tuple] = []


def hold(phase: str) -> None:
    """Keep the device busy, between two events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(CYCLES)
    end.record()
    ledger[phase].append((start, end))


READY = torch.ones(2048, 4096).pin_memory()


class Batches(Dataset):
    """Each item is a batch that takes the host a known time."""

    def __len__(self) -> int:
        return args.steps

    def __getitem__(self, index: int) -> Tensor:
        start = time.perf_counter()
        while time.perf_counter() - start < args.ms / 1e3:
            pass
        fetches.append(time.perf_counter() - start)
        return READY


class HoldInBackward(torch.autograd.Function):
    """The identity, with a wait in its backward."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        hold("backward")
        return gradient


class Net(nn.Module):
    """One layer and two waits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        hold("forward")
        return HoldInBackward.apply(self.layer(x[:64, :8]))


class HoldSGD(torch.optim.SGD):
    """SGD with a wait."""

    def step(self, closure=None):
        hold("optimizer")
        return super().step(closure)


def main() -> None:
    """Train, then print what each phase was held for."""
    model = Net().cuda()
    optimizer = HoldSGD(model.parameters(), lr=0.01)
    for x in DataLoader(Batches(), batch_size=None):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        x = x.to("cuda")
        end.record()
        copies.append((start, end))
        model(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        hold("other")
        torch.cuda.synchronize()  # the device is idle while the next batch is made
    planted = {
        phase: [start.elapsed_time(end) / 1e3 for start, end in pairs]
        for phase, pairs in ledger.items()
    }
    planted["data"] = fetches
    planted["transfer"] = [start.elapsed_time(end) / 1e3 for start, end in copies]
    print(json.dumps({"steps": args.steps, "planted": planted}))


if __name__ == "__main__":
    main()
