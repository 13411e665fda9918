"""What several files of tests on levers share."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from hotlap.levers.common import graphed
from hotlap.levers.common.process import Process
from hotlap.levers.common.unchanged import Settings


@pytest.fixture
def settings() -> Iterator[Settings]:
    """Attributes that are set on models, counted."""
    process = Process(torch, SimpleNamespace(), lambda **event: None)
    yield Settings(torch, process)
    process.undo()


@pytest.fixture
def draws_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU masks are drawn there, and no generator of the host has to do with it."""
    monkeypatch.setattr(graphed, "_random_states", lambda torch: ())
