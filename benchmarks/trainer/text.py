"""GPT-2 124M: hotlap's trainer beside a loop that an expert writes by hand, with the same levers.

Both: bf16, fused AdamW whose decay leaves norms alone, attention by torch's fused kernel, a
vocabulary padded to 50304, gradients clipped to a norm of 1, random tokens that lie on the device.
By hand, model and loss are compiled together, and nothing is done but train. The trainer is the
real one with the recipe `gpt2-124m`, on random tokens and without accumulation.

The model is the same class for both: what differs is the loop.

    python benchmarks/trainer/text.py
    python benchmarks/trainer/text.py --clip 0                      as measured for the tuner
    python benchmarks/trainer/text.py --device cpu --tiny           to try it
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
from torch import Tensor
from turns import Turns

from hotlap.models.build import build_model
from hotlap.trainer.settings import TrainSettings

HAND, OURS = "by hand", "hotlap"
N_BATCHES = 4
REQUIRED = "at least 0.99 of the loop by hand"


def settings(arguments: argparse.Namespace, folder: str) -> TrainSettings:
    """The recipe, on random tokens."""
    changes = [
        *("data.kind=synthetic", "n_samples=8000000", "accumulate=1"),
        *(f"batch={arguments.batch}", f"clip_norm={arguments.clip}"),
    ]
    if arguments.tiny:
        sizes = ("n_layers=2", "n_heads=2", "width=64", "vocab_size=256")
        changes += ["model.name=gpt", *sizes, "model.context=32", "data.context=32"]
    return settings_of("gpt2-124m", changes, arguments.device, folder)


def by_hand(chosen: TrainSettings, pace: Pace) -> None:
    """As somebody writes it who knows how."""
    device, how = chosen.compute.device, chosen.optimizer
    torch.set_float32_matmul_precision("high")
    model = build_model(chosen.model).to(device)
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": how.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=how.betas, fused=True)

    @torch.compile
    def loss_of(tokens: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())

    model.train()
    for tokens, targets in pace(batches(chosen)):
        loss_of(tokens, targets).backward()
        if chosen.loop.clip_norm:
            torch.nn.utils.clip_grad_norm_(parameters, chosen.loop.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def batches(chosen: TrainSettings) -> Iterator[tuple[Tensor, Tensor]]:
    """Tokens on the device, and the same one place on, in turn, for ever."""
    shape = (chosen.loop.batch, chosen.data.context + 1)
    device, vocabulary = chosen.compute.device, chosen.model.vocab_size
    made = [torch.randint(vocabulary, shape, device=device) for _ in range(N_BATCHES)]
    ready = [(one[:, :-1].contiguous(), one[:, 1:].contiguous()) for one in made]
    while True:
        yield from ready


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    add_common(parser, rounds=10, seconds=4.0)
    parser.add_argument("--batch", type=int, default=64, help="sequences (default: %(default)s)")
    parser.add_argument("--clip", type=float, default=1.0, help="norm; 0 leaves it (default: 1)")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.batch, arguments.rounds, arguments.seconds = 2, 2, 0.2
        torch.set_num_threads(1)
    n_warmup = 3 if arguments.tiny else 20
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
    n_tokens = arguments.batch * chosen.data.context
    rates = {name: turns.rate(name, n_tokens) for name in turns.names}
    speed = turns.speed(OURS)
    lines = [
        f"{where(arguments.device)}; {chosen.model.name}, {arguments.batch} sequences of "
        f"{chosen.data.context} tokens, clip {arguments.clip:g}; {turns.n_steps} steps a block, "
        f"{turns.n_rounds} blocks each",
        *(f"  {name:<8} {rate.text('.0f')} tokens/s" for name, rate in rates.items()),
        f"  {OURS} / {HAND}: {speed.text()}; required: {REQUIRED}",
    ]
    report(arguments, "text", lines, {"tokens_per_s": rates, "speed": speed}, turns)


if __name__ == "__main__":
    main()
