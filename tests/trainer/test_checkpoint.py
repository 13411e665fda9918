"""Checkpoints on disk: whole or not there, checked, and never executed."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import torch

from hotlap.errors import UsageError
from hotlap.trainer.checkpoint import (
    Checkpoints,
    Place,
    Tensors,
    damage,
    load,
    names_in,
    read_state,
)


def tensors(value: float) -> Tensors:
    return {"model.a": torch.full((3, 4), value), "random.0.cpu": torch.arange(5)}


def checkpoints(
    folder: Path, keep: int = 2, asynchronous: bool = False
) -> tuple[Checkpoints, list[str]]:
    said: list[str] = []
    return Checkpoints(folder, keep, asynchronous, said.append), said


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_is_read_is_what_was_written(tmp_path: Path, asynchronous: bool) -> None:
    files, said = checkpoints(tmp_path, asynchronous=asynchronous)
    written = tensors(1.5)
    files.save(Place(7, 1, 3), written, {"world_size": 1})
    written["model.a"].zero_()  # the training goes on while it is written
    files.finish()
    newest = files.newest()
    assert newest is not None
    assert read_state(newest) == {"step": 7, "epoch": 1, "batch": 3, "world_size": 1}
    assert names_in(newest) == {"model.a", "random.0.cpu"}
    found = tensors(0.0)
    load(newest, found, is_alone=True)
    assert torch.equal(found["model.a"], torch.full((3, 4), 1.5))
    assert said == []


def test_the_last_ones_are_kept_and_one_that_was_interrupted_is_not_taken(tmp_path: Path) -> None:
    files, _ = checkpoints(tmp_path, keep=2)
    for step in (1, 2, 3):
        files.save(Place(step), tensors(step), {})
    (tmp_path / "step-00000009.partial").mkdir()
    assert files.newest() == tmp_path / "step-00000003"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000002", "step-00000003"]


@pytest.mark.parametrize("what", ["changed", "shortened", "missing", "no manifest", "bad manifest"])
def test_what_is_damaged_is_named_and_passed_over(tmp_path: Path, what: str) -> None:
    files, said = checkpoints(tmp_path)
    for step in (1, 2):
        files.save(Place(step), tensors(step), {})
    newest = tmp_path / "step-00000002"
    file = next(newest.glob("*.distcp"))
    content = file.read_bytes()
    if what == "changed":
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif what == "shortened":
        file.write_bytes(content[:-1])
    elif what == "missing":
        file.unlink()
    elif what == "no manifest":
        (newest / "manifest.json").unlink()
    else:
        (newest / "manifest.json").write_text("[]")
    assert damage(newest)
    assert files.newest() == tmp_path / "step-00000001"
    assert said[0].startswith("the checkpoint step-00000002 is damaged (")


def test_a_checkpoint_that_cannot_be_written_is_told_and_the_training_goes_on(
    tmp_path: Path,
) -> None:
    files, said = checkpoints(tmp_path, asynchronous=True)
    files.save(Place(1), tensors(1.0), {})
    files.finish()
    files.save(Place(2), tensors(2.0), {})
    assert files._pending is not None
    files._pending.written.result()
    next(files._pending.folder.glob("*.distcp")).unlink()  # as a disk that lost it
    files.finish()
    assert "the checkpoint step-00000002.partial was not written" in said[0]
    assert files.newest() == tmp_path / "step-00000001"


class Harmful:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {Harmful.trace}",)

    trace = ""


def test_nothing_of_a_checkpoint_is_executed(tmp_path: Path) -> None:
    files, _ = checkpoints(tmp_path)
    files.save(Place(1), tensors(1.0), {})
    Harmful.trace = str(tmp_path / "executed")
    index = tmp_path / "step-00000001" / ".metadata"
    index.write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(UsageError, match=r"its index asks for (posix|os)\.system"):
        load(index.parent, tensors(0.0), is_alone=True)
    assert not Path(Harmful.trace).exists()


def test_other_objects_than_tensors_are_refused(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save({"a": torch.ones(2), "b": {"any": "object"}}, checkpoint_id=tmp_path, no_dist=True)
    with pytest.raises(UsageError, match="BytesStorageMetadata"):
        load(tmp_path, {"a": torch.zeros(2)}, is_alone=True)
