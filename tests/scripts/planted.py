"""A DataLoader loop with a busy wait of known length planted in each phase of the step."""

import argparse

import torch
import torch.nn.functional as F
from spin import Ledger, SpinNet, SpinSGD, parse
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Batches(Dataset):
    """Each item is a whole batch."""

    def __init__(self, count: int, ledger: Ledger) -> None:
        self.count = count
        self.ledger = ledger

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.ledger.spin("data")
        return torch.randn(8, 4), torch.randn(8, 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    args = parse(parser)
    ledger = args.ledger

    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(Batches(args.steps, ledger), batch_size=None, num_workers=args.workers)
    model = SpinNet(ledger)
    optimizer = SpinSGD(model.parameters(), ledger)

    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ledger.spin("other")
        ledger.end_step()

    ledger.report(without=("data",) if args.workers else ())


if __name__ == "__main__":
    main()
