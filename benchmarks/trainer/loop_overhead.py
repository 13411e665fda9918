"""What a training loop costs on a model so small that the host is all that counts.

The same GPT of a few narrow layers is trained by a plain loop, by hotlap's trainer, by accelerate
and by Lightning; the same loss, the same fused SGD, tokens that lie on the device. The loops take
turns in one process (`turns.py`).

The plain loop does nothing but train: no figures, no progress, no checkpoint, no signal. hotlap's
does all of that, as `hotlap train` does it; Lightning's logger, progress bar and checkpoints are
switched off. The chronometer, which `hotlap train` has beside the loop, is in none of them.

    python benchmarks/trainer/loop_overhead.py
    python benchmarks/trainer/loop_overhead.py --device cpu --tiny         to try it
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from ours import Pace, run_trainer, settings_of
from reporting import add_common, report, where
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from turns import Turns

from hotlap.models.build import build_model
from hotlap.trainer.settings import TrainSettings

PLAIN, OURS, ACCELERATE, LIGHTNING = "plain", "hotlap", "accelerate", "lightning"
N_BATCHES = 8
REQUIRED = "at most 2 % over the plain loop"


def settings(arguments: argparse.Namespace, folder: str) -> TrainSettings:
    """The small model, and the numbers that all loops share."""
    context = arguments.context
    changes = [
        *("model.name=gpt", f"n_layers={arguments.layers}", "n_heads=2", "width=64"),
        *("vocab_size=256", f"model.context={context}", f"data.context={context}"),
        *("data.kind=synthetic", "n_samples=8000000"),
        *("loop.task=text", f"batch={arguments.batch}", "schedule.name=constant"),
        *("optimizer.name=sgd", "lr=0.01", "momentum=0.9", "weight_decay=0.0"),
        *("precision=tf32", "channels_last=false", 'compile=""'),
    ]
    return settings_of("resnet50-synthetic", changes, arguments.device, folder)


class Batches(Dataset):
    """Tokens that lie on the device, in turns."""

    def __init__(self, chosen: TrainSettings, pace: Pace) -> None:
        device, vocabulary = chosen.compute.device, chosen.model.vocab_size
        shape = (chosen.loop.batch, chosen.data.context + 1)
        made = [torch.randint(vocabulary, shape, device=device) for _ in range(N_BATCHES)]
        self._batches = pace(self._for_ever([(x[:, :-1], x[:, 1:]) for x in made]))

    @staticmethod
    def _for_ever(made: list[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
        ready = [(inputs.contiguous(), targets.contiguous()) for inputs, targets in made]
        while True:
            yield from ready

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return next(self._batches)


def loader(chosen: TrainSettings, pace: Pace) -> Any:
    """What all loops but hotlap's take their batches from."""
    return DataLoader(Batches(chosen, pace), batch_size=None)


def model_and_optimizer(chosen: TrainSettings) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A new model, on the device."""
    model = build_model(chosen.model).to(chosen.compute.device)
    return model, optimizer_of(model, chosen)


def optimizer_of(model: nn.Module, chosen: TrainSettings) -> torch.optim.Optimizer:
    """Fused SGD."""
    how = chosen.optimizer
    return torch.optim.SGD(model.parameters(), lr=how.lr, momentum=how.momentum, fused=True)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over all tokens."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def plain(chosen: TrainSettings, pace: Pace) -> None:
    """As anybody writes it."""
    model, optimizer = model_and_optimizer(chosen)
    model.train()
    for inputs, targets in loader(chosen, pace):
        loss = loss_of(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def accelerate(chosen: TrainSettings, pace: Pace) -> None:
    """As accelerate's guide writes it."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=chosen.compute.device == "cpu")
    model, optimizer = model_and_optimizer(chosen)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader(chosen, pace))
    model.train()
    for inputs, targets in batches:
        loss = loss_of(model(inputs), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()


def lightning(chosen: TrainSettings, pace: Pace) -> None:
    """As Lightning's guide writes it, all that can be switched off switched off."""
    pl = import_lightning()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

    class Module(pl.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = build_model(chosen.model)

        def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            inputs, targets = batch
            return loss_of(self.model(inputs), targets)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer_of(self.model, chosen)

    trainer = pl.Trainer(
        accelerator="cpu" if chosen.compute.device == "cpu" else "gpu",
        devices=1,
        max_steps=10**9,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), loader(chosen, pace))


def import_lightning() -> Any:
    """Under either of its two names."""
    try:
        import lightning.pytorch as pl
    except ImportError:
        import pytorch_lightning as pl
    return pl


LOOPS = {PLAIN: plain, OURS: run_trainer, ACCELERATE: accelerate, LIGHTNING: lightning}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    # Many short blocks: the host is faster in one second than in the next.
    add_common(parser, rounds=120, seconds=0.1)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--only", default=",".join(LOOPS), help="loops; the plain one is there")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.layers, arguments.batch, arguments.context = 1, 1, 8
        arguments.rounds = min(arguments.rounds, 40)
        torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    names = [name for name in LOOPS if name == PLAIN or name in arguments.only.split(",")]
    turns = Turns(arguments.device, names, arguments.rounds, arguments.seconds, n_warmup=100)
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/said", "w") as said:
        chosen = settings(arguments, folder)
        loops = {name: (lambda pace, name=name: LOOPS[name](chosen, pace)) for name in names}
        with contextlib.redirect_stderr(said):  # lines of progress
            turns.run(loops)
    plain_us = turns.times(PLAIN, 1e6)
    lines = [
        f"{where(arguments.device)}; {turns.n_steps} steps a block, {turns.n_rounds} blocks each",
        f"  {PLAIN:<11} {plain_us.text('.1f')} µs a step",
    ]
    figures: dict[str, Any] = {PLAIN: plain_us}
    for name in names[1:]:
        more, times = turns.more_time(name), turns.times(name, 1e6)
        required = f"; required: {REQUIRED}" if name == OURS else ""
        lines.append(f"  {name:<11} {times.text('.1f')} µs a step, {more.text('+.2f')} %{required}")
        figures[name] = {"step_us": times, "more_percent": more}
    report(arguments, "loop_overhead", lines, figures, turns)


if __name__ == "__main__":
    main()
