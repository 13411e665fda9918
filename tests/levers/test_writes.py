"""Files that a trial writes outside its copy are told, and nothing else is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import io, os, pathlib, sys, tempfile
import torch
from hotlap.levers.common.writes import watch_writes

outside = pathlib.Path(sys.argv[1])
watch_writes(torch, lambda path: print(path))
for _ in range(2):
    with open(outside / "log.txt", "a") as stream:
        stream.write("a line")
torch.save({}, str(outside / "model.pt"))
torch.save({}, io.BytesIO())
(outside / "notes.md").write_text("text")
assert (outside / "notes.md").read_text() == "text"
open("inside.txt", mode="w").close()
tempfile.NamedTemporaryFile().close()
(outside / ".cache").mkdir()
(outside / ".cache" / "kernel").touch()
(outside / ".cache" / "kernel").write_bytes(b"")
open(os.devnull, "w").close()
try:
    open()
except TypeError as error:
    assert "argument" in str(error)
"""


def test_files_outside_the_folder_are_told_once(tmp_path: Path) -> None:
    work, outside, temporary = (tmp_path / name for name in ("work", "outside", "temporary"))
    for folder in (work, outside, temporary):
        folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(outside)],
        cwd=work,
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told = [Path(line).name for line in done.stdout.splitlines()]
    assert told == ["log.txt", "model.pt", "notes.md"]


def test_a_tuner_tells_of_them(tmp_path: Path) -> None:
    work, temporary = tmp_path / "work", tmp_path / "temporary"
    work.mkdir()
    temporary.mkdir()
    (work / "train.py").write_text(
        "import torch\n"
        f"log = open({str(tmp_path / 'log.txt')!r}, 'a')\n"
        "model = torch.nn.Linear(4, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(60):\n"
        "    model(torch.ones(2, 4)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    words = ["-m", "hotlap", "tune", "--budget", "1", "--steps", "32", "--json", "ladder.json"]
    done = subprocess.run(
        [sys.executable, *words, "--only", "threads", "train.py"],
        cwd=work,
        env={**os.environ, "TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stderr.splitlines() if "outside its folder" in line]
    assert told == [
        f"  note: the command writes {tmp_path / 'log.txt'}, outside its folder: so do trials"
    ]
    assert json.loads((work / "ladder.json").read_text())["status"] == "complete"
