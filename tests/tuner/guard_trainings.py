"""Trains a small net many times, with and without a lever, and prints what a trial would hold.

    guard_trainings.py calm|wild|dropout|restless LEVER_FILE SEEDS LEVER[=VALUE] …

For each seed and lever one line of JSON: losses and fingerprints. In one process, because a
process a training would take minutes; each training starts from its seed and undoes its lever.
"""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from hotlap.levers import find_levers
from hotlap.levers.common.fingerprint import Fingerprints
from hotlap.levers.common.noise import NOISE
from hotlap.levers.common.process import Process

N_STEPS = 42
WILD = ("wild", "restless")
CHANCE = torch.Generator()
CHANCE.seed()  # by nobody: as where sums are made in the order in which threads come


def data(seed: int, kind: str) -> TensorDataset:
    """Images of four classes, that can be learnt and not at once; or noise with any label."""
    made = torch.Generator().manual_seed(1000 + seed)
    if kind in WILD:
        images = torch.randn(N_STEPS * 20, 3, 12, 12, generator=made)
        return TensorDataset(images, torch.randint(10, (len(images),), generator=made))
    labels = torch.randint(4, (N_STEPS * 20,), generator=made)
    patterns = torch.randn(4, 3, 12, 12, generator=made)
    return TensorDataset(
        patterns[labels] + 4.0 * torch.randn(len(labels), 3, 12, 12, generator=made), labels
    )


def net(kind: str) -> nn.Module:
    """Two convolutions and a linear layer, with dropout or without; or more of them, normalised."""
    if kind in WILD:
        blocks = [(nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()) for _ in "1234"]
        parts = [part for block in blocks for part in block]
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), *parts, nn.Flatten(), nn.Linear(16 * 36, 10)
        )
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.2 if kind == "dropout" else 0.0),
        nn.Linear(16 * 36, 4),
    )


def disturb(model: nn.Module) -> None:
    """What another order of sums does to gradients, different each time."""
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad *= 1 + 1e-7 * torch.randn(parameter.shape, generator=CHANCE)


def train(kind: str, seed: int, lever: object, value: str) -> dict:
    """One training; the calls of the model go the way they do under hotlap.

    A wild one has a learning rate so large that every difference grows tenfold in a few steps.
    """
    events: list[dict] = []
    session = SimpleNamespace(around_call=None, new_module=None)
    process = Process(torch, session, lambda **event: events.append(event))
    torch.manual_seed(seed)
    dataset = data(seed, kind)
    if lever is not None:
        process.apply(lever, value)
    fingerprints = Fingerprints(torch, lambda **event: events.append(event))
    model = net(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2 if kind in WILD else 0.02, momentum=0.9)
    losses = []
    loader = DataLoader(dataset, batch_size=16, shuffle=True)
    for step, (images, labels) in enumerate(loader):
        if step == 0:
            process._meet_model(model, (images,), {})
        fingerprints.see_input(model, (images,), {})
        output = session.around_call(model, (images,), {}) if session.around_call else model(images)
        loss = nn.functional.cross_entropy(output, labels)
        optimizer.zero_grad()
        loss.backward()
        if kind == "restless":
            disturb(model)
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == N_STEPS:
            break
    fingerprints.remove()
    process.undo()
    return {"losses": losses, "fingerprints": [e for e in events if "fingerprint" in e]}


def main() -> None:
    """Print a line a training."""
    torch.set_num_threads(1)
    levers = {lever.name: lever for lever in (NOISE, *find_levers((sys.argv[2],)))}
    for word in ("", "", "_noise=0.01", *sys.argv[4:]):
        name, _, value = word.partition("=")
        for seed in range(int(sys.argv[3])):
            result = train(sys.argv[1], seed, levers[name] if name else None, value or "on")
            print(json.dumps({"lever": name, "seed": seed, **result}), flush=True)


if __name__ == "__main__":
    main()
