"""What a folder held is put back: all that was written there since is gone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hotlap.tuner.contents import Contents


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "copy"
    (folder / "pkg").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)")
    (folder / "pkg" / "net.py").write_text("x = 1")
    (folder / "data").symlink_to("/somewhere")
    return folder


@pytest.fixture
def contents(folder: Path, tmp_path: Path) -> Contents:
    sources = {}
    for i, file in enumerate(path for path in folder.rglob("*") if path.is_file()):
        sources[file] = tmp_path / f"source-{i}"
        sources[file].write_bytes(file.read_bytes())
        status = file.stat()
        os.utime(sources[file], ns=(status.st_atime_ns, status.st_mtime_ns))
    return Contents(folder, sources, {"__pycache__"})


def test_nothing_is_written_at_first(contents: Contents) -> None:
    assert contents.written() == []


def test_what_was_written_is_told_and_put_back(folder: Path, contents: Contents) -> None:
    (folder / "out" / "deep").mkdir(parents=True)
    (folder / "out" / "deep" / "last.pt").write_bytes(b"weights")
    (folder / "pkg" / "net.py").write_text("x = 2")
    (folder / "train.py").unlink()
    (folder / "data").unlink()
    (folder / "data").mkdir()
    (folder / "data" / "downloaded").touch()
    told = [str(path.relative_to(folder)) for path in contents.written()]
    out = ["out", "out/deep", "out/deep/last.pt"]
    assert told == ["data", "data/downloaded", *out, "pkg/net.py", "train.py"]
    contents.put_back()
    assert contents.written() == []
    assert (folder / "pkg" / "net.py").read_text() == "x = 1"
    assert (folder / "train.py").read_text() == "print(1)"
    assert os.readlink(folder / "data") == "/somewhere"
    assert not (folder / "out").exists()


def test_a_folder_that_is_gone_comes_again_with_its_files(folder: Path, contents: Contents) -> None:
    (folder / "pkg" / "net.py").unlink()
    (folder / "pkg").rmdir()
    (folder / "pkg").write_text("a file now")
    contents.put_back()
    assert (folder / "pkg" / "net.py").read_text() == "x = 1"


def test_folders_that_may_hold_anything_are_left_alone(folder: Path, contents: Contents) -> None:
    (folder / "pkg" / "__pycache__").mkdir()
    (folder / "pkg" / "__pycache__" / "net.pyc").touch()
    assert contents.written() == []
    contents.put_back()
    assert (folder / "pkg" / "__pycache__" / "net.pyc").exists()


def test_a_file_whose_source_is_gone_ends_nothing(
    folder: Path, contents: Contents, tmp_path: Path
) -> None:
    for source in tmp_path.glob("source-*"):
        source.unlink()
    (folder / "train.py").write_text("another")
    (folder / "new").touch()
    contents.put_back()
    assert not (folder / "new").exists()
