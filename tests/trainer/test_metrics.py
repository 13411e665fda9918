"""What was seen of many steps, read together."""

from __future__ import annotations

import math

import pytest
import torch

from hotlap.data.sampling import IGNORED
from hotlap.trainer.metrics import CAPACITY, Metrics

CPU = torch.device("cpu")


def test_losses_are_summed_over_more_steps_than_are_kept() -> None:
    seen = Metrics(CPU)
    n_steps = 2 * CAPACITY + 7
    for step in range(1, n_steps + 1):
        n = 3 if step % 2 else torch.tensor(3)  # known on the host, or on the device
        seen.add_loss(step, torch.tensor(float(step)), n)
    figures = seen.read()
    assert figures.n == 3 * n_steps
    assert figures.loss == pytest.approx((n_steps + 1) / 2 / 3, rel=1e-12)
    assert seen.read().n == 0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_first_step_without_a_number_is_named_also_after_it_was_read(bad: float) -> None:
    seen = Metrics(CPU)
    for step in range(1, CAPACITY + 10):
        seen.add_loss(step, torch.tensor(bad if step in (5, CAPACITY + 3) else 1.0), 1)
    assert seen.bad_step() == 5
    seen.read()
    assert seen.bad_step() == 5


def test_a_mean_counts_as_often_as_it_has_targets() -> None:
    seen = Metrics(CPU)
    seen.add_loss(1, torch.tensor(2.0), 3, is_mean=True)
    seen.add_loss(2, torch.tensor(9.0), 1)
    assert seen.read().loss == (3 * 2.0 + 9.0) / 4


def test_losses_that_share_their_memory_are_copied() -> None:
    for is_memory_reused, expected in ((True, 3.0), (False, 4.0)):
        seen, loss = Metrics(CPU, is_memory_reused), torch.tensor(2.0)
        seen.add_loss(1, loss, 1)
        seen.add_loss(2, loss.fill_(4.0), 1)
        assert seen.read().loss == expected


def test_hits_are_shares_of_what_was_looked_at() -> None:
    seen = Metrics(CPU)
    seen.add_loss(1, torch.tensor(1.0), 100)  # a step whose hits were not counted
    assert math.isnan(seen.read().top1)
    logits = torch.arange(10.0).repeat(4, 1)  # class 9 comes first, then 8, ...
    seen.add_accuracy(logits, torch.tensor([9, 5, 4, IGNORED]))
    seen.add_loss(2, torch.tensor(1.0), 100)
    figures = seen.read()
    assert figures.top1 == pytest.approx(1 / 3)
    assert figures.top5 == pytest.approx(2 / 3)


def test_fewer_classes_than_five_are_all_among_the_first_five() -> None:
    seen = Metrics(CPU)
    seen.add_accuracy(torch.eye(3), torch.tensor([0, 0, 2]))
    figures = seen.read()
    assert (figures.top1, figures.top5) == (pytest.approx(2 / 3), 1.0)
