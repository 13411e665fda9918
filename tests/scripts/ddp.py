"""DistributedDataParallel under torchrun, one process per rank, on gloo."""

import json

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

EPOCHS = 2


def main() -> None:
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(3840, 512), torch.randint(0, 10, (3840,)))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=128, sampler=sampler)
    model = DistributedDataParallel(
        nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    steps = 0
    samples = torch.zeros((), dtype=torch.long)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            print(f"rank {rank} loss {loss.item().hex()}\n", end="", flush=True)
            steps += 1
            samples += len(x)

    dist.all_reduce(samples)
    if rank == 0:
        counts = {"steps": steps, "samples": samples.item()}
        print(json.dumps({**counts, "validations": 0, "val_batches": 0}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
