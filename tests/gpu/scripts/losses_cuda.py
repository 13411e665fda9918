"""A loop on the device whose losses are read only at the end; --style chooses how it computes."""

import argparse
import json

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--style", default="plain")
parser.add_argument("--steps", type=int, default=150)
args = parser.parse_args()

torch.manual_seed(0)
width = 256
model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cuda", enabled=args.style == "scaler")
criterion = nn.CrossEntropyLoss()
forward = model
if args.style == "compile":
    forward = torch.compile(model)
elif args.style == "graphs":
    forward = torch.compile(model, mode="reduce-overhead")
x = torch.randn(64, width, device="cuda")
y = torch.randint(0, 10, (64,), device="cuda")
losses = []


def manual_graph() -> None:
    """Warm up, capture a whole step, replay it: what CUDA graphs by hand look like."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            criterion(model(x), y).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    for _ in range(args.steps):
        graph.replay()
        losses.append(loss.detach().clone())


def loop() -> None:
    """The usual loop."""
    for _ in range(args.steps):
        if args.style == "graphs":
            torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast("cuda", dtype=torch.float16, enabled=args.style == "scaler"):
            loss = criterion(forward(x), y)
        losses.append(loss.detach().clone())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


if __name__ == "__main__":
    manual_graph() if args.style == "manual" else loop()
    print(json.dumps([loss.item().hex() for loss in losses]))
    print(json.dumps({"peak": torch.cuda.max_memory_allocated()}))
