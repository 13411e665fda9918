"""The model and its loss as one program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from training import losses, make_tokens, train

from hotlap.trainer.learner import Learner
from hotlap.trainer.tasks import loss_of

LOSS_BOUND = 1e-5


def test_it_gives_the_loss_and_logits_only_where_they_are_looked_at() -> None:
    model, inputs, targets = nn.Linear(4, 3), torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    expected = loss_of(model(inputs), targets, 0.1)
    for task in ("images", "text"):
        learner = Learner(model, task, 0.1)
        loss, logits = learner(inputs, targets)
        torch.testing.assert_close(loss, expected)
        assert torch.equal(learner(inputs), model(inputs))
        assert (logits is None) == (task == "text")
        assert logits is None or not logits.requires_grad


def test_compiled_it_is_one_program_with_the_loss_in_it() -> None:
    programs: list[str] = []

    def backend(module: Any, example: Any) -> Any:
        programs.append(module.code)
        return module.forward

    learner = Learner(nn.Linear(4, 3), "text", 0.0)
    learner.compile(backend=backend, fullgraph=True)
    learner(torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1]))
    (program,) = programs
    assert "linear" in program
    assert "cross_entropy" in program


@pytest.mark.timeout(400)
@pytest.mark.parametrize("n_ranks", [1, 2])
def test_a_compiled_training_has_the_same_losses_and_checkpoints(
    tmp_path: Path, n_ranks: int
) -> None:
    """Half of it compiled, half not, against none of it."""
    tokens = f"data.path={make_tokens(tmp_path / 'tokens')}"
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    common = (tokens, "n_layers=1", "schedule.name=constant")
    for folder in (whole, halves):
        folder.mkdir()
    assert train(whole, *common, "batch=8").returncode == 0
    mine = (*common, f"batch={8 // n_ranks}")
    for changes in (("steps=10", "compile=default"), ("steps=20",)):
        done = train(halves, *mine, *changes, n_ranks=n_ranks)
        assert done.returncode == 0, done.stderr[-3000:]
    assert "going on from" in done.stderr
    found, expected = losses(halves), losses(whole)
    assert found.keys() == expected.keys()
    assert max(abs(found[step] - one) / one for step, one in expected.items()) <= LOSS_BOUND
