"""torch.compile in four styles, with what the compiler counted at the end."""

import argparse
import json
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters, get_compilation_metrics

STEPS = 30


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(256, 512)
        self.fc2 = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


def make_step(style: str) -> Callable[[Tensor, Tensor], Tensor]:
    criterion = nn.CrossEntropyLoss()
    model: nn.Module = Net()
    if style == "sequential":
        model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if style == "module":
        model = torch.compile(model)
    elif style in ("method", "sequential"):
        model.compile()

    def train_step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return torch.compile(train_step) if style == "step" else train_step


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--style", choices=["module", "method", "step", "sequential"], default="module"
    )
    parser.add_argument("--ragged", action="store_true", help="make the last batch smaller")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    train_step = make_step(args.style)
    samples = 0
    for step in range(STEPS):
        size = 96 if args.ragged and step == STEPS - 1 else 256
        x, y = torch.randn(size, 256), torch.randint(0, 10, (size,))
        print("loss", train_step(x, y).item().hex())
        samples += size

    graphs = counters["stats"]["unique_graphs"]
    breaks = sum(counters["graph_break"].values())
    recompiles = sum(m.recompile_reason is not None for m in get_compilation_metrics())
    print("graphs", graphs, "breaks", breaks, "recompiles", recompiles)
    print(json.dumps({"steps": STEPS, "samples": samples, "validations": 0, "val_batches": 0}))


if __name__ == "__main__":
    main()
