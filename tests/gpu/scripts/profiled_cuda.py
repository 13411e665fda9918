"""One large linear layer, with waits and a slow loader to be planted."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

N = 4096


class Batches(Dataset):  # type: ignore[type-arg]
    def __init__(self, is_slow: bool) -> None:
        self.is_slow = is_slow

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> int:
        if self.is_slow:
            time.sleep(0.02)
        return index


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--sync", action="store_true")
    parser.add_argument("--slow-loader", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Linear(N, N, bias=False, device="cuda", dtype=getattr(torch, args.dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(N, N, device="cuda", dtype=model.weight.dtype, requires_grad=True)
    for _ in DataLoader(Batches(args.slow_loader), batch_size=1):
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        x.grad = None
        if args.sync:
            float(loss.item())  # planted: item
            torch.cuda.synchronize()  # planted: synchronize


if __name__ == "__main__":
    main()
