"""The values that a settings file or `--levers` asks for: taken, left out or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotlap.errors import UsageError
from hotlap.levers import LEVERS
from hotlap.levers.common.lever import Decision, Lever
from hotlap.levers.common.workload import Workload
from hotlap.tuner.settings import (
    SettingsFile,
    keep_older,
    other_script,
    read_settings,
    values_of,
    write_settings,
)


def of_a_user(*values: str) -> Lever:
    """A lever of a user's file, which says nothing of what it takes."""
    return Lever(
        name="mine",
        summary="a user's own",
        changes="nothing",
        risk="safe",
        phases=("forward",),
        saves=lambda workload: 0.1,
        values=lambda workload: values,
        applies=lambda workload: Decision(True, "it is a test"),
        edit=lambda value, workload: (),
    )


def settled(lever: Lever | None = None, **asked: str) -> dict[str, str]:
    levers = (*LEVERS, lever) if lever else LEVERS
    return values_of(asked, levers, Workload(n_cpus=4), "hotlap.toml")


def test_a_lever_that_is_off_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "hotlap.toml"
    file.write_text(
        '[levers]\nfused_optimizer = false\nbf16 = "off"\ncompile = "false"\nthreads = 2\n'
    )
    assert settled(**read_settings(file).levers) == {"threads": "2"}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "hotlap.toml"
    kept = SettingsFile({"bf16": "autocast"}, ("train.py", "--name", 'a "b"\n\\c'))
    write_settings(file, kept, "by a test")
    assert read_settings(file) == kept
    write_settings(file, SettingsFile({}), "by a test")
    assert read_settings(file) == SettingsFile({})


def test_a_command_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "hotlap.toml"
    file.write_text('command = "train.py"\n[levers]\n')
    with pytest.raises(UsageError, match=r"command is 'train\.py'; a list of its words is"):
        read_settings(file)


@pytest.mark.parametrize(
    ("tuned", "command", "other"),
    [
        ("train.py --lr 0.1", "train.py --lr 0.2", None),
        ("train.py", "torchrun --nproc-per-node 2 ./train.py", None),
        ("work/train.py", "/home/me/work/train.py", None),
        ("train.py", "../train.py", None),
        ("python -m pkg.train", "python -m pkg.train --lr 1", None),
        ("ema.py", "x.py", ("ema.py", "x.py")),
        ("one/train.py", "two/train.py", ("one/train.py", "two/train.py")),
        ("python -m pkg.train", "python -m pkg.test", ("pkg.train", "pkg.test")),
        ("./train", "train.py", ("./train", "train.py")),
    ],
)
def test_whether_a_command_runs_another_script(
    tuned: str, command: str, other: tuple[str, str] | None
) -> None:
    assert other_script(tuned.split(), command.split()) == other


def test_a_lever_that_is_on_has_its_first_value(tmp_path: Path) -> None:
    file = tmp_path / "hotlap.toml"
    file.write_text('[levers]\nfused_optimizer = true\nbf16 = true\nthreads = "on"\n')
    wanted = {"fused_optimizer": "on", "bf16": "autocast", "threads": "4"}
    assert settled(**read_settings(file).levers) == wanted
    assert settled(fused_optimizer="", bf16="", threads="") == wanted


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("fused_optimizer", "banana", "'on' is expected"),
        (
            "batch_size",
            "0",
            "'x' and a whole number of at least 2, as in 'x2' or 'x2:128', is expected",
        ),
        (
            "batch_size",
            "x0",
            "'x' and a whole number of at least 2, as in 'x2' or 'x2:128', is expected",
        ),
        ("workers", "x", "a whole number of at least 1 is expected"),
        ("workers", "-1", "a whole number of at least 1 is expected"),
        ("threads", "0", "a whole number of at least 1 is expected"),
        ("tf32", "banana", "'high' or 'medium' is expected"),
        ("allocator", "banana", "'tcmalloc', 'jemalloc' or 'glibc' is expected"),
    ],
)
def test_a_value_that_is_none_is_refused(name: str, value: str, expected: str) -> None:
    with pytest.raises(UsageError) as refusal:
        settled(**{name: value})
    message = f"hotlap.toml: the lever {name} is '{value}'; {expected}, or 'off'"
    assert str(refusal.value) == message


def test_where_no_value_is_worth_trying_one_is_asked_for() -> None:
    message = "the lever workers has no value; a whole number of at least 1 is expected"
    for value in ("", "on"):
        with pytest.raises(UsageError, match=message):
            settled(workers=value)


def test_a_users_lever_takes_anything() -> None:
    assert settled(of_a_user("fast"), mine="banana") == {"mine": "banana"}
    assert settled(of_a_user("fast"), mine="on") == {"mine": "on"}
    assert settled(of_a_user("fast"), mine="") == {"mine": "fast"}
    with pytest.raises(UsageError, match="the lever mine has no value; a value is expected"):
        settled(of_a_user(), mine="")


def test_an_unknown_name_is_told_with_its_file() -> None:
    with pytest.raises(UsageError, match=r"^hotlap\.toml: 'warp' is no lever; there are "):
        settled(warp="off")


@pytest.mark.parametrize(
    "content", ["[levers]\nthreads = 2\n", "[levers", "[project]\nname = 'mine'\n", "\xff"]
)
def test_a_file_that_is_about_to_be_replaced_is_kept(tmp_path: Path, content: str) -> None:
    file = tmp_path / "hotlap.toml"
    file.write_text(content, encoding="latin-1")
    older = keep_older(file)
    assert older == tmp_path / "hotlap.toml.old"
    assert older.read_bytes() == file.read_bytes()


def test_a_file_without_a_lever_does_not_replace_an_older_one_that_was_kept(tmp_path: Path) -> None:
    file, older = tmp_path / "hotlap.toml", tmp_path / "hotlap.toml.old"
    assert keep_older(file) is None
    older.write_text("[levers]\nthreads = 2\n")
    file.write_text("[levers]\n")
    assert keep_older(file) is None
    assert read_settings(older).levers == {"threads": "2"}
