"""Adversarial training: two networks and two optimizers, fed by one batch each step."""

import argparse
import json

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

LATENT = 64
BATCH = 64


def mlp(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 512),
        nn.LeakyReLU(0.2),
        nn.Linear(512, 512),
        nn.LeakyReLU(0.2),
        nn.Linear(512, outputs),
    )


def bce(logits: Tensor, real: bool) -> Tensor:
    target = torch.ones_like(logits) if real else torch.zeros_like(logits)
    return F.binary_cross_entropy_with_logits(logits, target)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--critic", type=int, default=1, help="updates of D for each of G")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(TensorDataset(torch.randn(30 * BATCH, 784).tanh()), BATCH, shuffle=True)
    netG, netD = mlp(LATENT, 784), mlp(784, 1)
    optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-4, betas=(0.5, 0.999))

    steps = samples = 0
    for (real,) in loader:
        for _ in range(args.critic):
            fake = netG(torch.randn(len(real), LATENT)).tanh()
            lossD = bce(netD(real), True) + bce(netD(fake.detach()), False)
            optimizerD.zero_grad()
            lossD.backward()
            optimizerD.step()
            print("loss", lossD.item().hex())

        fake = netG(torch.randn(len(real), LATENT)).tanh()
        lossG = bce(netD(fake), True)
        optimizerG.zero_grad()
        lossG.backward()
        optimizerG.step()
        print("loss", lossG.item().hex())
        steps += 1
        samples += len(real)

    print(json.dumps({"steps": steps, "samples": samples, "validations": 0, "val_batches": 0}))


if __name__ == "__main__":
    main()
