"""Mixed precision with autocast and GradScaler, where one update overflows and is skipped."""

import json

import torch
from torch import nn

STEPS = 30
BATCH = 256
OVERFLOW_AT = 12


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
    model.append(nn.Linear(1024, 10))
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)

    steps = samples = skipped = 0
    for step in range(STEPS):
        x = torch.randn(BATCH, 512)
        y = torch.randint(0, 10, (BATCH,))
        if step == OVERFLOW_AT:
            x[0] *= 10_000  # one outlier: the loss is finite, its float16 gradients are not

        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_fn(model(x), y)
        print("loss", loss.item().hex())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scale = scaler.get_scale()
        scaler.update()
        optimizer.zero_grad()

        skipped += scaler.get_scale() < scale
        steps += 1
        samples += len(x)

    print("skipped", skipped)
    print(json.dumps({"steps": steps, "samples": samples, "validations": 0, "val_batches": 0}))


if __name__ == "__main__":
    main()
