"""Trainings whose operators, waits and graph breaks are known beforehand, and how they end."""

import argparse
import json
import os
import signal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, CHANNELS, SIZE, WIDTH, HEADS, TOKENS = 16, 8, 16, 64, 2, 16


class Net(nn.Module):
    """One convolution, one attention, two linear layers, a norm and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.norm = nn.LayerNorm(WIDTH)
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x).flatten(1).unflatten(1, (HEADS, TOKENS, WIDTH))
        x = F.scaled_dot_product_attention(x, x, x)
        x = F.gelu(self.body(self.norm(x)))  # planted: gelu
        return self.head(x).mean((1, 2))


class Broken(nn.Module):
    """A graph break on a known line."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        torch._dynamo.graph_break()  # planted: break
        return self.head(torch.relu(x))


def batch(style: str, step: int) -> Tensor:
    if style == "compile":
        return torch.randn(BATCH if step < 3 else BATCH + 8, WIDTH)
    return torch.randn(BATCH, 3, SIZE, SIZE)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--style", default="plain")
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model: nn.Module = Broken() if args.style == "compile" else Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    called = torch.compile(model, backend="aot_eager") if args.style == "compile" else model
    own = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    leak = []
    for step in range(args.steps):
        x, y = batch(args.style, step), torch.randint(0, 10, (BATCH + 8,))
        with torch.autocast("cpu", torch.bfloat16, enabled=args.style == "bf16"):
            loss = F.cross_entropy(called(x).float(), y[: len(x)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex(), flush=True)  # planted: item
        if args.style == "leaks":
            leak.append(torch.ones(1 << 21))
        if args.style == "own-profiler" and step in (5, 7):
            (own.start if step == 5 else own.stop)()
        if args.style == "raises" and step == 5:
            raise ValueError("planted")
        if args.style == "killed" and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
    if args.style == "own-profiler":
        print("own profiler saw", len(own.key_averages()) > 0)
    print(json.dumps({"steps": args.steps}))


if __name__ == "__main__":
    main()
