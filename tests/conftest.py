"""What the tests share: each command runs once a session, however many tests look at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from running import Command, Result, RunCache, run_hotlap


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunCache]:
    """The result of a shared command: `runs(Command(("plain.py",)))`."""
    cache = RunCache(tmp_path_factory.mktemp("shared-runs"))
    yield cache
    cache.close()


@pytest.fixture(scope="module", autouse=True)
def _commands_of_this_file(request: pytest.FixtureRequest, runs: RunCache) -> Iterator[None]:
    """Start what the chosen tests of a file are parametrised with; the next file finds quiet."""
    for item in request.session.items:
        if item.path == request.path and isinstance(item, pytest.Function):
            values = item.callspec.params.values() if hasattr(item, "callspec") else ()
            for value in values:
                for command in value if isinstance(value, tuple) else (value,):
                    if isinstance(command, Command):
                        runs.start(command)
    yield
    runs.settle()


@pytest.fixture
def hotlap_time(tmp_path: Path) -> Callable[..., Result]:
    """`hotlap time` with a Runs folder of the test's own."""
    return partial(run_hotlap, folder=tmp_path)
