"""Reinforcement learning: an agent acts without gradients, and learns from what it remembers.

With `--episodes` it learns from the states of a whole episode, each of which it was shown alone.
"""

import argparse
import json
import random

import torch
import torch.nn.functional as F
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--episodes", action="store_true")
args = parser.parse_args()

random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)

agent = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 4))
target = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(agent.parameters(), lr=1e-3)
memory = torch.randn(1000, 16)


def loss_of_a_batch(size: int) -> torch.Tensor:
    with torch.no_grad():
        agent(memory[:1]).argmax()
        batch = memory[torch.randint(0, 1000, (size,))]
        worth = target(batch)
    return F.smooth_l1_loss(agent(batch), worth)


def loss_of_an_episode(size: int) -> torch.Tensor:
    states = memory[torch.randint(0, 1000, (size,))]
    return torch.stack([agent(state).log_softmax(0)[0] for state in states]).sum()


steps = samples = 0
for _ in range(40):
    size = random.randrange(20, 60)
    loss = loss_of_an_episode(size) if args.episodes else loss_of_a_batch(size)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("loss", loss.item().hex())
    steps += 1
    samples += size

print(json.dumps({"steps": steps, "samples": samples, "validations": 0, "val_batches": 0}))
