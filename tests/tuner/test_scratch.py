"""The scratch copy: trials see the user's folder and cannot harm it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
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


def test_a_folder_behind_a_symlink_is_copied(work: Path) -> None:
    real = work.parent / "checkpoints"
    (real / "old").mkdir(parents=True)
    (real / "model.pt").write_bytes(b"weights")
    (real / "latest.pt").symlink_to("model.pt")
    (work / "ckpt").symlink_to("../checkpoints")
    (work / "best.pt").symlink_to(real / "model.pt")
    with Scratch(work) as copy:
        (copy.folder / "ckpt" / "latest.pt").write_bytes(b"other")
        assert (copy.folder / "ckpt" / "model.pt").read_bytes() == b"other"
        (copy.folder / "best.pt").write_bytes(b"other")
        (copy.folder / "ckpt" / "old" / "new.pt").write_bytes(b"new")
        assert copy.changed() == []
    assert (real / "model.pt").read_bytes() == b"weights"
    assert list((real / "old").iterdir()) == []


def test_a_symlink_into_the_folder_leads_into_the_copy(work: Path) -> None:
    (work / "pkg" / "up").symlink_to("..")
    (work / "itself").symlink_to(work)
    (work / "around").symlink_to("around")
    (work / "broken").symlink_to("../not/there")
    with Scratch(work) as copy:
        (copy.folder / "link").write_text("print(2)")
        assert (copy.folder / "train.py").read_text() == "print(2)"
        for name in ("pkg/up", "itself"):
            assert (copy.folder / name).resolve() == copy.folder
        assert os.readlink(copy.folder / "broken") == "../not/there"
        assert (copy.folder / "around").is_symlink()
    assert (work / "train.py").read_text() == "print(1)"


def test_symlinks_in_a_circle_through_other_folders_come_to_an_end(work: Path) -> None:
    other = work.parent / "other"
    other.mkdir()
    (other / "back").symlink_to(work)
    (other / "all").symlink_to("..")
    (work / "other").symlink_to(other)
    (work / "all").symlink_to("..")
    with Scratch(work) as copy:
        for name in ("other/back", "all/my work", "other/all/my work"):
            assert (copy.folder / name).resolve() == copy.folder
        assert (copy.folder / "all").resolve() == (copy.folder / "other" / "all").resolve()


@pytest.mark.parametrize("limit", ["MAX_FOLLOWED_FILES", "MAX_FOLLOWED_BYTES"])
def test_data_behind_a_symlink_is_linked_and_watched(
    work: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(scratch, limit, 5)
    monkeypatch.setattr(scratch, "MAX_FILES", 3)
    data = work.parent / "data"
    (data / "train").mkdir(parents=True)
    for i in range(6):
        (data / "train" / f"{i}.jpg").write_bytes(b"jpg")
    (work / "data").symlink_to(data)
    with Scratch(work) as copy:
        names = sorted(path.name for path in (copy.folder / "data" / "train").iterdir())
        assert names == [f"{i}.jpg" for i in range(6)]
        assert copy.changed() == []
        if limit == "MAX_FOLLOWED_FILES":
            (copy.folder / "data" / "new").write_text("new")
            assert copy.changed() == [data]
        else:
            (copy.folder / "data" / "train" / "0.jpg").write_bytes(b"copied")
            (copy.folder / "data" / "train" / "5.jpg").write_bytes(b"linked")
            assert copy.changed() == [data / "train" / "5.jpg"]


def test_what_cannot_be_written_behind_a_symlink_is_linked(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = work.parent / "data"
    data.mkdir()
    (work / "data").symlink_to(data)
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK)
    with Scratch(work) as copy:
        assert (copy.folder / "data").resolve() == data


def test_a_script_behind_a_symlink_finds_the_modules_beside_it(work: Path) -> None:
    common = work.parent / "common"
    common.mkdir()
    (common / "main.py").write_text("import beside")
    (common / "beside.py").write_text("print('found')")
    (work / "main.py").symlink_to(common / "main.py")
    with Scratch(work) as copy:
        command = [sys.executable, "main.py"]
        assert subprocess.check_output(command, cwd=copy.folder, text=True) == "found\n"
        (copy.folder / "main.py").write_text("pass")
        assert copy.changed() == [common / "main.py"]


def test_paths_into_the_folder_lead_into_the_copy(work: Path) -> None:
    (work.parent / "config.yaml").write_text("a: 1")
    (work.parent / "alias").symlink_to(work)
    outside = str(work.parent / "config.yaml")
    with Scratch(work) as copy:
        inside = str(copy.folder)
        expected = {
            f"{work}/train.py": f"{inside}/train.py",
            f"{work}": inside,
            f"--out={work}/results/": f"--out={inside}/results/",
            f"out={work}/link": f"out={inside}/link",
            f"{work}/pkg/../new": f"{inside}/new",
            f"{work.parent}/alias/train.py": f"{inside}/train.py",
            "../my work/train.py": f"{inside}/train.py",
            "--out=../my work/new/one": f"--out={inside}/new/one",
            "--config=../config.yaml": f"--config={outside}",
            f"--config={outside}": f"--config={outside}",
            f"{work}/.venv/bin/python": f"{work}/.venv/bin/python",
            f"{work}2/train.py": f"{work}2/train.py",
            "--lr=0.1": "--lr=0.1",
            "a=b=../config.yaml": "a=b=../config.yaml",
        }
        assert copy.words(tuple(expected)) == tuple(expected.values())


def test_a_file_of_an_earlier_copy_is_the_users_own(work: Path) -> None:
    with Scratch(work) as earlier:
        before = earlier.folder
    with Scratch(work) as copy:
        assert copy.original(str(before / "pkg" / "net.py")) == str(work / "pkg" / "net.py")
        for other in (before / "gone.py", before.parent / "others" / "train.py"):
            assert copy.original(str(other)) == str(other)


TUNER = """
import sys, time
from pathlib import Path
from hotlap.tuner.scratch import Scratch
with Scratch(Path(sys.argv[1]), Path(sys.argv[2])) as copy:
    print(copy.folder, flush=True)
    time.sleep(600)
"""


def test_copies_of_tuners_that_were_killed_are_removed(work: Path, tmp_path: Path) -> None:
    where = tmp_path / "copies"
    unknown = where / "hotlap-12345678"
    unknown.mkdir(parents=True)
    command = [sys.executable, "-c", TUNER, str(work), str(where)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tuner:
        assert tuner.stdout is not None
        left = Path(tuner.stdout.readline().strip())
        with Scratch(work, where):
            assert left.exists()
        tuner.send_signal(signal.SIGKILL)
    owner = left.parent / scratch.OWNER
    of_this_host = owner.read_text()
    owner.write_text(f"other-{of_this_host}")
    with Scratch(work, where):
        assert left.exists()
    owner.write_text(of_this_host)
    with Scratch(work, where):
        assert not left.parent.exists()
    assert list(where.iterdir()) == [unknown]


def test_a_process_number_in_use_again_keeps_no_copy_but_another_user_does(
    work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "copies" / "hotlap-12345678"
    root.mkdir(parents=True)
    host, container, _, _ = scratch._identity(str(os.getpid())).split()
    (root / scratch.OWNER).write_text(f"{host} {container} {os.getpid()} 0")
    user = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    with Scratch(work, root.parent):
        assert root.exists()
    monkeypatch.undo()
    with Scratch(work, root.parent):
        assert not root.exists()
