"""Whose line an operator is put down to, on real stacks of torch's profiler."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from hotlap.chronometer.profile import sites

OWN = """
import torch

def move(tensor):
    return tensor.clone()

def look(tensor):
    return tensor.square()
"""
SCRIPT = """
import torch
import hooks

def main(profiler):
    with profiler:
        hooks.move(torch.ones(4))
        hooks.look(torch.ones(4))
    return profiler
"""


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The site of each operator, by its name."""
    own = tmp_path / "chronometer"
    own.mkdir()
    (own / "hooks.py").write_text(OWN)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    monkeypatch.syspath_prepend(own)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sites, "OWN_CODE", str(own))
    profiler = torch.profiler.profile(with_stack=True, record_shapes=True)
    runpy.run_path(str(script))["main"](profiler)
    results = profiler.profiler.kineto_results
    told = sites.find_sites(results, {})
    by_id = {event.correlation_id: event.name for event in flat(results.experimental_event_tree())}
    return {by_id[key]: told["sites"][place] for key, place in told["operators"].items()}


def flat(events: Any) -> Any:
    for event in events:
        yield event
        yield from flat(event.children)


def test_a_copy_that_the_chronometer_passes_on_is_the_users(found: dict[str, Any]) -> None:
    site = found["aten::clone"]
    assert (site["file"], site["line"], site["owner"]) == ("train.py", 7, "user")


def test_what_the_chronometer_does_by_itself_is_its_own(found: dict[str, Any]) -> None:
    assert found["aten::pow"]["owner"] == "hotlap"
