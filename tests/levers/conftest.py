"""What several files of tests on levers share."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from hotlap.levers.common.process import Process
from hotlap.levers.common.unchanged import Settings


@pytest.fixture
def settings() -> Iterator[Settings]:
    """Attributes that are set on models, counted."""
    process = Process(torch, SimpleNamespace(), lambda **event: None)
    yield Settings(torch, process)
    process.undo()
