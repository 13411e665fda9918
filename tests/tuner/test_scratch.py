"""The scratch copy: trials see the user's folder and cannot harm it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotlap.errors import UsageError
from hotlap.tuner import scratch
from hotlap.tuner.scratch import Scratch


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "my work"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)")
    (folder / "pkg" / "net.py").write_text("x = 1")
    (folder / ".hotlap").mkdir()
    (folder / "link").symlink_to(folder / "train.py")
    return folder


def test_what_a_trial_writes_stays_in_the_copy(work: Path) -> None:
    (work / "model.pt").write_bytes(b"weights")
    with Scratch(work) as copy:
        (copy.folder / "model.pt").write_bytes(b"other")
        (copy.folder / "pkg" / "new").write_text("new")
        assert (copy.folder / "train.py").read_text() == "print(1)"
        assert not (copy.folder / ".hotlap").exists()
        kept = copy.folder
    assert (work / "model.pt").read_bytes() == b"weights"
    assert not (work / "pkg" / "new").exists()
    assert not kept.exists()


def test_large_files_are_linked_but_not_those_a_training_writes(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "MAX_COPIED_BYTES", 10)
    (work / "data.bin").write_bytes(b"0" * 100)
    (work / "model.pt").write_bytes(b"0" * 100)
    with Scratch(work) as copy:
        assert (copy.folder / "data.bin").is_symlink()
        assert not (copy.folder / "model.pt").is_symlink()
        assert copy.changed() == []
        (copy.folder / "data.bin").write_bytes(b"1" * 99)
        assert copy.changed() == [work.resolve() / "data.bin"]


def test_a_folder_of_very_many_files_is_linked(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "MAX_ENTRIES", 5)
    (work / "images").mkdir()
    for i in range(6):
        (work / "images" / f"{i}.jpg").write_bytes(b"jpg")
    with Scratch(work) as copy:
        assert (copy.folder / "images").is_symlink()
        assert len(list((copy.folder / "images").iterdir())) == 6
    assert len(list((work / "images").iterdir())) == 6


def test_paths_that_lead_out_of_the_folder_stay_valid(work: Path) -> None:
    (work.parent / "config.yaml").write_text("a: 1")
    with Scratch(work) as copy:
        words = copy.words(("train.py", "--config", "../config.yaml", "..nothing"))
        assert words[2] == str(work.parent.resolve() / "config.yaml")
        assert (words[0], words[3]) == ("train.py", "..nothing")
        assert copy.original(str(copy.folder / "train.py")) == str(work.resolve() / "train.py")
        assert copy.original("/elsewhere/x.py") == "/elsewhere/x.py"


def test_a_folder_that_is_too_much_to_copy_is_one_sentence(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scratch, "MAX_FILES", 1)
    copy = Scratch(work)
    with pytest.raises(UsageError, match=r"holds too much for a copy of it .* --in-place"):
        copy.__enter__()
    assert not copy.folder.exists()


def test_a_copy_below_the_folder_itself_is_not_copied_again(tmp_path: Path) -> None:
    below = tmp_path / "runs" / "jobs"
    below.mkdir(parents=True)
    (tmp_path / "train.py").write_text("pass")
    with Scratch(tmp_path, below) as copy:
        assert copy.folder.is_relative_to(below)
        assert sorted(path.name for path in copy.folder.rglob("*")) == ["jobs", "runs", "train.py"]
    assert list(below.iterdir()) == []
    with pytest.raises(UsageError, match="--scratch /nonexistent cannot be used"):
        Scratch(tmp_path, Path("/nonexistent")).__enter__()
