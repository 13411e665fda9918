"""A loop of one's own around Hugging Face accelerate, which divides and accumulates."""

import argparse
import json

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--accumulate", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    dataset = TensorDataset(torch.randn(2560, 512), torch.randint(0, 10, (2560,)))
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(dataset, batch_size=160, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    loss_fn = nn.CrossEntropyLoss()

    steps = samples = 0
    for _ in range(args.epochs):
        model.train()
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = loss_fn(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                    steps += 1
                optimizer.step()
                optimizer.zero_grad()
            # accelerator.backward divides the loss in this very way
            print("loss", (loss / accelerator.gradient_accumulation_steps).item().hex())
            samples += len(inputs)

    print(json.dumps({"steps": steps, "samples": samples, "validations": 0, "val_batches": 0}))


if __name__ == "__main__":
    main()
