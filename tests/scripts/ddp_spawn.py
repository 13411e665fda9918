"""DistributedDataParallel whose two processes the script starts itself."""

import json
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WORLD_SIZE = 2


def find_free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def worker(rank: int, world_size: int, port: int) -> None:
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size
    )
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset = TensorDataset(torch.randn(3840, 512), torch.randn(3840, 1))
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank)
    loader = DataLoader(dataset, batch_size=64, sampler=sampler)
    model = DDP(nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_fn = nn.MSELoss()

    steps = 0
    samples = torch.zeros((), dtype=torch.long)
    for inputs, targets in loader:
        loss = loss_fn(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"rank {rank} loss {loss.item().hex()}\n", end="", flush=True)
        steps += 1
        samples += len(inputs)

    dist.all_reduce(samples)
    if rank == 0:
        counts = {"steps": steps, "samples": samples.item()}
        print(json.dumps({**counts, "validations": 0, "val_batches": 0}))
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(worker, args=(WORLD_SIZE, find_free_port()), nprocs=WORLD_SIZE)
