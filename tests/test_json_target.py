"""Where `--json` can write its document to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest
from running import environment


def listed(
    folder: Path, target: str, stdout: int | BinaryIO = subprocess.PIPE
) -> subprocess.CompletedProcess[bytes]:
    """The document is an empty list: nothing was measured here."""
    words = [sys.executable, "-m", "hotlap", "runs", "--json", target]
    return subprocess.run(
        words,
        cwd=folder,
        env=environment(),
        stdout=stdout,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )


def test_a_link_is_written_into_and_stays_one(tmp_path: Path) -> None:
    (tmp_path / "there.json").write_text("old")
    (tmp_path / "here.json").symlink_to("there.json")
    done = listed(tmp_path, "here.json")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "here.json").is_symlink()
    assert json.loads((tmp_path / "there.json").read_text()) == []


def test_standard_output_is_written_to_also_where_it_is_a_file(tmp_path: Path) -> None:
    """By a link of our own: a broken one must not cost the machine its /dev/stdout."""
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    with (tmp_path / "kept.txt").open("wb") as kept:
        kept.write(b"before\n")
        kept.flush()
        done = listed(tmp_path, "stdout", kept)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "stdout").is_symlink()
    before, document, *_ = (tmp_path / "kept.txt").read_text().splitlines()
    assert before == "before"
    assert json.loads(document) == []


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("/dev/full", "No space left on device"),
        ("nowhere/x.json", "No such file or directory"),
        ("dangling", "No such file or directory"),
        (".", "is a folder"),
    ],
)
def test_what_cannot_be_written_is_one_sentence(tmp_path: Path, target: str, why: str) -> None:
    os.symlink("nothing-there", tmp_path / "dangling")
    done = listed(tmp_path, target)
    assert done.returncode == 2
    assert done.stderr.startswith(f"hotlap: --json {target}".encode())
    assert why in done.stderr.decode()
    assert done.stderr.count(b"\n") == 1
