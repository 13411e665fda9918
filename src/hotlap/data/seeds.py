"""Random draws that depend on what they are for, and on nothing that was drawn before.

A sample's augmentation is a pure function of (seed, epoch, index), an epoch's order one of (seed,
epoch), a batch's mixing one of (seed, step, rank). So neither the number of workers nor the place
where a run was resumed changes any of them.
"""

from __future__ import annotations

import hashlib
import random
from typing import Literal

import torch

Purpose = Literal["order", "sample", "flip", "crop", "batch", "synthetic", "worker"]
"""Keeps draws for different things apart where their numbers are the same."""


def mixed_seed(purpose: Purpose, *parts: int) -> int:
    """One seed of 63 bits from several numbers; neighbours have nothing in common."""
    text = f"{purpose}:{':'.join(map(str, parts))}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def generator_for(
    purpose: Purpose, *parts: int, device: torch.device | str = "cpu"
) -> torch.Generator:
    """A torch generator of its own, which leaves the global one alone."""
    return torch.Generator(device=device).manual_seed(mixed_seed(purpose, *parts))


def random_for(purpose: Purpose, *parts: int) -> random.Random:
    """The same for a few scalars on the host: cheaper than a torch generator."""
    return random.Random(mixed_seed(purpose, *parts))
