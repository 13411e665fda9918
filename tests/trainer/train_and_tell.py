"""Trains a recipe and tells the loss of every step, of all ranks together, and the final weights.

torchrun --nproc-per-node 2 train_and_tell.py RESULT.json WEIGHTS.safetensors RECIPE key=value …
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from hotlap.distributed.launch import detect, start
from hotlap.distributed.leave import leave
from hotlap.trainer.build import build
from hotlap.trainer.checkpoint import Place
from hotlap.trainer.export import NAME, export_weights
from hotlap.trainer.loop import planned_steps, updates
from hotlap.trainer.metrics import Metrics
from hotlap.trainer.recipe import resolve
from hotlap.trainer.update import update


def main() -> None:
    result, weights, recipe, *changes = sys.argv[1:]
    torch.set_num_threads(1)
    settings, launch = resolve(recipe, changes), detect(os.environ)
    with start(launch, 60.0, device="cpu") as started:
        t = build(settings, started)
        n_steps, place, losses = planned_steps(t), Place(), []
        while place.step < n_steps:
            for micro_batches in updates(t, place):
                seen = Metrics(t.device)
                update(t, micro_batches, place.step, n_steps, seen)
                losses.append(seen.read(t.figures_group).loss)
                place = replace(place, step=place.step + 1, batch=place.batch + len(micro_batches))
                if place.step == n_steps:
                    break
            place = replace(place, epoch=place.epoch + 1, batch=0)
        folder = Path(weights).parent
        export_weights(t, folder)
        if launch.rank == 0:
            (folder / NAME).rename(weights)
            Path(result).write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
    leave(0)
