"""ResNet-50: hotlap's trainer beside a loop that an expert writes by hand, with the same levers.

Both: bf16, channels last, compiled with the loss, fused SGD with momentum whose decay leaves norms
alone, cuDNN's search on, random images that lie on the device. The trainer is the real one with the
recipe `resnet50-synthetic`: bytes are normalised, the rate follows its schedule, figures are kept,
lines are told. The loop by hand has torchvision's model and images that are normalised already, and
does nothing but train.

Each batch size is a process of its own: a compiler that has seen two sizes makes its code for any.

    python benchmarks/trainer/images.py --batch 256
    python benchmarks/trainer/images.py --device cpu --tiny         to try it
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from ours import Pace, run_trainer, settings_of
from reporting import add_common, report, where
from torch import Tensor, nn
from turns import Turns

from hotlap.trainer.settings import TrainSettings

HAND, OURS = "by hand", "hotlap"
N_BATCHES = 2
REQUIRED = "at least 0.99 of the loop by hand"


def settings(arguments: argparse.Namespace, folder: str) -> TrainSettings:
    """The recipe, at a batch size."""
    changes = [f"batch={arguments.batch}"]
    if arguments.tiny:
        changes += ["model.name=resnet18", "model.image_size=32", 'compile=""']
    return settings_of("resnet50-synthetic", changes, arguments.device, folder)


def build_resnet(chosen: TrainSettings) -> nn.Module:
    """torchvision's; where there is none, our own, which is the same."""
    try:
        from torchvision import models
    except ImportError:
        from hotlap.models import resnet as models
    return getattr(models, chosen.model.name)()


def by_hand(chosen: TrainSettings, pace: Pace) -> None:
    """As somebody writes it who knows how."""
    device, how = chosen.compute.device, chosen.optimizer
    torch.backends.cudnn.benchmark = True
    model = build_resnet(chosen).to(device, memory_format=torch.channels_last)
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": how.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.01, momentum=how.momentum, fused=True)

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            return F.cross_entropy(model(images), labels)

    if chosen.compute.compile:
        loss_of = torch.compile(loss_of)

    model.train()
    for images, labels in pace(batches(chosen)):
        loss_of(images, labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def batches(chosen: TrainSettings) -> Iterator[tuple[Tensor, Tensor]]:
    """Finished images on the device, in turn, for ever."""
    device, side = chosen.compute.device, chosen.data.image_size
    shape = (chosen.loop.batch, 3, side, side)
    made = [
        (
            torch.randn(shape, device=device).contiguous(memory_format=torch.channels_last),
            torch.randint(1000, (chosen.loop.batch,), device=device),
        )
        for _ in range(N_BATCHES)
    ]
    while True:
        yield from made


def main() -> None:
    """Measure one batch size and print."""
    parser = argparse.ArgumentParser()
    add_common(parser, rounds=10, seconds=3.0)
    parser.add_argument("--batch", type=int, default=256)
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.batch, arguments.rounds, arguments.seconds = 2, 2, 0.2
        torch.set_num_threads(1)
    # Past the first line of progress, which loads the kernels that count hits.
    n_warmup = 3 if arguments.tiny else 60
    turns = Turns(arguments.device, [HAND, OURS], arguments.rounds, arguments.seconds, n_warmup)
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/said", "w") as said:
        chosen = settings(arguments, folder)
        with contextlib.redirect_stderr(said):  # lines of progress
            turns.run(
                {
                    HAND: lambda pace: by_hand(chosen, pace),
                    OURS: lambda pace: run_trainer(chosen, pace),
                }
            )
    rates = {name: turns.rate(name, arguments.batch) for name in turns.names}
    speed, median = turns.speed(OURS), turns.median_speed(OURS)
    lines = [
        f"{where(arguments.device)}; {chosen.model.name}, batch {arguments.batch}, "
        f"{turns.n_steps} steps a block, {turns.n_rounds} blocks each",
        *(f"  {name:<8} {rate.text('.1f')} images/s" for name, rate in rates.items()),
        f"  {OURS} / {HAND}: {speed.text()}, in the median {median.text()}; required: {REQUIRED}",
    ]
    name = f"images-{arguments.batch}"
    report(arguments, name, lines, {"images_per_s": rates, "speed": speed, "median": median}, turns)


if __name__ == "__main__":
    main()
