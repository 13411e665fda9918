"""Training epochs with a pass over a validation set after each one."""

import argparse
import contextlib
import json

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def train(model: nn.Module, loader: DataLoader, optimizer: torch.optim.Optimizer) -> int:
    model.train()
    criterion = nn.CrossEntropyLoss()
    seen = 0
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        print("loss", loss.item().hex())
        seen += targets.size(0)
    return seen


def validate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    correct = total = 0
    for inputs, targets in loader:
        predicted = model(inputs).argmax(dim=1)
        correct += (predicted == targets).sum().item()
        total += targets.size(0)
    return correct / total


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--no-grad-off", action="store_true", help="validate with autograd on")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    x = torch.randn(3200, 512)
    dataset = TensorDataset(x, (x @ torch.randn(512, 10)).argmax(dim=1))
    train_set, val_set = random_split(dataset, [2560, 640])
    train_loader = DataLoader(train_set, batch_size=256, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=128)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Dropout(0.1), nn.Linear(1024, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    steps = samples = validations = val_batches = 0
    for epoch in range(args.epochs):
        samples += train(model, train_loader, optimizer)
        steps += len(train_loader)
        with contextlib.nullcontext() if args.no_grad_off else torch.no_grad():
            accuracy = validate(model, val_loader)
        print(f"epoch {epoch} accuracy {accuracy:.4f}")
        validations += 1
        val_batches += len(val_loader)

    counts = {"steps": steps, "samples": samples}
    print(json.dumps({**counts, "validations": validations, "val_batches": val_batches}))


if __name__ == "__main__":
    main()
