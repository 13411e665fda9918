"""Trains a small net many times, with and without a lever, and prints what a trial would hold.

    guard_trainings.py LEVER_FILE SEEDS LEVER[=VALUE] …

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
from hotlap.levers.common.fingerprint import take_fingerprints
from hotlap.levers.common.process import Process

N_STEPS = 42


def data(seed: int) -> TensorDataset:
    """Images of four classes, that can be learnt and not at once."""
    made = torch.Generator().manual_seed(1000 + seed)
    labels = torch.randint(4, (N_STEPS * 20,), generator=made)
    patterns = torch.randn(4, 3, 12, 12, generator=made)
    return TensorDataset(
        patterns[labels] + 4.0 * torch.randn(len(labels), 3, 12, 12, generator=made), labels
    )


def net() -> nn.Module:
    """Two convolutions and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 36, 4),
    )


def train(seed: int, lever: object, value: str) -> dict:
    """One training; the calls of the model go the way they do under hotlap."""
    events: list[dict] = []
    session = SimpleNamespace(around_call=None, new_module=None)
    process = Process(torch, session, lambda **event: events.append(event))
    torch.manual_seed(seed)
    dataset = data(seed)
    if lever is not None:
        process.apply(lever, value)
    hooks = take_fingerprints(torch, lambda **event: events.append(event))
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    losses = []
    loader = DataLoader(dataset, batch_size=16, shuffle=True)
    for step, (images, labels) in enumerate(loader):
        if step == 0:
            process._meet_model(model, (images,), {})
        output = session.around_call(model, (images,), {}) if session.around_call else model(images)
        loss = nn.functional.cross_entropy(output, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if len(losses) == N_STEPS:
            break
    hooks.remove()
    process.undo()
    return {"losses": losses, "fingerprints": [e for e in events if "fingerprint" in e]}


def main() -> None:
    """Print a line a training."""
    torch.set_num_threads(1)
    levers = {lever.name: lever for lever in find_levers((sys.argv[1],))}
    for word in ("", "", *sys.argv[3:]):
        name, _, value = word.partition("=")
        for seed in range(int(sys.argv[2])):
            result = train(seed, levers[name] if name else None, value or "on")
            print(json.dumps({"lever": name, "seed": seed, **result}), flush=True)


if __name__ == "__main__":
    main()
