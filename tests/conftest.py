"""What the tests share: each command runs once a session, however many tests look at it."""

from __future__ import annotations

import functools
import re
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from running import Command, Result, RunCache, run_hotlap

NEEDS_QUIET = "needs_quiet"
ROOT = Path(__file__).parents[1]
SHARED = re.compile(r"\b(runs|cluster): (?:RunCache|Cluster)\b")
"""Fixtures that are made once for all files, as tests ask for them."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{NEEDS_QUIET}: measures time, so nothing runs beside it")
    # A shell has what it starts with & ignore Ctrl-C, and every program started from there
    # inherits that: the commands that tests interrupt would not notice.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that measure time go first: the shared commands start with the first test after."""
    items.sort(key=lambda item: item.get_closest_marker(NEEDS_QUIET) is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """In several processes, tests of one file stay together, for the sake of what they share.

    So do files whose tests look at the same runs or at the same cluster.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid.partition("::")[0])

    return ByFile(config, log)


@functools.cache
def group_of(file: str) -> str:
    """What a test file shares with others; itself, where it shares nothing."""
    found = SHARED.search((ROOT / file).read_text(encoding="utf-8"))
    return found[1] if found else file


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
