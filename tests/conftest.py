"""What the tests share: each command runs once a session, however many tests look at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from running import Command, Result, RunCache, run_hotlap

NEEDS_QUIET = "needs_quiet"
SHARED = ("runs", "cluster")
"""Fixtures that are made once for all files."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{NEEDS_QUIET}: measures time, so nothing runs beside it")
    config.addinivalue_line("markers", "xdist_group(name): tests of a group run in one process")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in this hook too
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that measure time go first: the shared commands start with the first test after.

    Where tests run in several processes (pytest-xdist), those of one file stay together, for the
    sake of what they share, and so do those that look at the same runs or at the same cluster.
    """
    items.sort(key=lambda item: item.get_closest_marker(NEEDS_QUIET) is None)
    for item in items:
        shared = [name for name in SHARED if name in getattr(item, "fixturenames", ())]
        group = shared[0] if shared else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunCache]:
    """The result of a shared command: `runs(Command(("plain.py",)))`.

    What the chosen tests are parametrised with is started at once, in their order.
    """
    cache = RunCache(tmp_path_factory.mktemp("shared-runs"))
    for item in request.session.items:
        callspec = getattr(item, "callspec", None)
        for value in callspec.params.values() if callspec else ():
            for command in value if isinstance(value, tuple) else (value,):
                if isinstance(command, Command):
                    cache.start(command)
    yield cache
    cache.close()


@pytest.fixture
def hotlap_time(tmp_path: Path) -> Callable[..., Result]:
    """`hotlap time` with a Runs folder of the test's own."""
    return partial(run_hotlap, folder=tmp_path)
