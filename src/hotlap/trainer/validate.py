"""Validation: loss and accuracy over the set that was not trained on.

Ranks share the set. What fills up a last batch has targets that are ignored, so that every sample
counts once and all ranks make equally many steps.
"""

from __future__ import annotations

import contextlib
from itertools import islice

import torch
from torch import Tensor

from hotlap.data.feed import Feed
from hotlap.trainer.build import Training
from hotlap.trainer.metrics import Figures, Metrics
from hotlap.trainer.tasks import loss_of, n_targets


@torch.no_grad()
def validate(t: Training, feed: Feed, n_batches: int) -> Figures:
    """The figures over so many batches; 0 takes all. With averaged weights where there are some."""
    seen = Metrics(t.device)

    def see(logits: Tensor, targets: Tensor) -> None:
        seen.add_loss(0, loss_of(logits, targets), n_targets(targets, may_be_padded=True))
        if t.settings.loop.task == "images":
            seen.add_accuracy(logits, targets)

    averaged = t.average.swapped(t.bare) if t.average is not None else contextlib.nullcontext()
    t.model.eval()
    try:
        with averaged:
            for batch in islice(feed.epoch(0), n_batches or None):
                inputs, targets = t.prepare_validation(*batch)
                with t.arithmetic.autocast():
                    through = t.model if t.pipeline is None else t.pipeline.evaluate
                    logits = through(inputs)
                if logits is not None:  # else another stage has them
                    see(logits, targets)
            return seen.read(t.figures_group)
    finally:
        t.model.train()
