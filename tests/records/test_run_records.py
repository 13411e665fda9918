"""A Run on disk is the Run that was written, and a damaged one is one sentence."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from making import make_rank, make_table, merged

from hotlap.errors import RecordError
from hotlap.records import RankRecord, Run
from hotlap.records.codec import to_json, write_json

STEP = {"data": 10, "forward": 20, "backward": 40, "optimizer": 20, "other": 10}
LOSSES = (0.1, math.nan, math.inf, -math.inf, None, 5e-324)


WRITE_HALF = """
import os, signal, sys
from pathlib import Path
from hotlap.records.codec import write_json

opened = os.fdopen

def open_to_die(*how, **more):
    stream = opened(*how, **more)

    def write_half(text):
        type(stream).write(stream, text[: len(text) // 2])
        stream.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    stream.write = write_half
    return stream

os.fdopen = open_to_die
write_json(Path(sys.argv[1]), {"new": True})
"""


def make_run() -> Run:
    table = make_table([STEP] * len(LOSSES), losses=LOSSES)
    return merged([make_rank(table)])


def same_loss(a: float | None, b: float | None) -> bool:
    return a == b or (a is not None and b is not None and math.isnan(a) and math.isnan(b))


def rewrite(folder: Path, change: dict[str, Any]) -> None:
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = make_run()
    run.write(tmp_path)
    back = Run.read(tmp_path)
    assert replace(back, loss=()) == replace(run, loss=())
    assert len(back.loss) == len(LOSSES)
    assert all(map(same_loss, back.loss, LOSSES))


def test_a_rank_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = make_rank(make_table([STEP, None], totals_ns=[100, 120]), rank=3, world_size=4)
    path = record.write(tmp_path)
    assert path.name.startswith("rank-00003-")
    assert RankRecord.read(path) == record


def test_losses_that_are_no_numbers_are_strings_in_plain_json(tmp_path: Path) -> None:
    make_run().write(tmp_path)

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    document = json.loads((tmp_path / "run.json").read_text(), parse_constant=refuse)
    assert document["loss"] == [0.1, "nan", "inf", "-inf", None, 5e-324]


def test_the_keys_that_others_rely_on_are_all_there(tmp_path: Path) -> None:
    keys = {
        *("schema", "id", "command", "status", "exit_code", "world_size", "machine", "levers"),
        *("total_s", "steps", "samples_per_s", "step_s", "phases_s", "validation", "memory"),
        *("power", "flops", "loss", "ranks", "verdict", "notes"),
    }
    document = to_json(make_run())
    assert keys <= document.keys()
    assert document["schema"] == 1
    assert set(document["steps"]) == {"measured", "warmup"}
    assert set(document["step_s"]) == {"mean", "std", "min", "median", "p10", "p90"}
    phases = {"data", "transfer", "forward", "backward", "optimizer", "other"}
    assert set(document["phases_s"]) == phases
    assert set(document["power"]) == {"mean_w", "peak_w", "energy_j", "samples_per_j"}
    assert set(document["flops"]) == {"per_step", "per_s", "ceiling_per_s", "mfu"}
    assert set(document["ranks"][0]) == {"rank", "host", "step_s", "samples"}


def test_keys_of_a_later_hotlap_are_ignored(tmp_path: Path) -> None:
    run = replace(make_run(), loss=())
    run.write(tmp_path)
    rewrite(tmp_path, {"new_key": {"a": 1}})
    assert Run.read(tmp_path) == run


@pytest.mark.parametrize("key", ["status", "steps", "loss", "machine"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    document = to_json(make_run())
    del document[key]
    write_json(tmp_path / "run.json", document)
    with pytest.raises(RecordError, match=f"'{key}' is missing"):
        Run.read(tmp_path)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"status": "great"}, "status"),
        ({"total_s": "long"}, "total_s"),
        ({"total_s": True}, "total_s"),
        ({"exit_code": 1.5}, "exit_code"),
        ({"command": "train.py"}, "command"),
        ({"loss": [1.0, "many"]}, r"loss\[1\]"),
        ({"steps": {"measured": 1}}, "steps.warmup"),
        ({"steps": []}, "steps"),
        ({"step_s": 0.1}, "step_s"),
        ({"ranks": [{"rank": "first"}]}, r"ranks\[0\].rank"),
        ({"schema": "one"}, "schema"),
        ({"schema": None}, "schema"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(
    tmp_path: Path, change: dict[str, Any], named: str
) -> None:
    make_run().write(tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(RecordError, match=named) as caught:
        Run.read(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'"run"', b"\xff\xfe", b"NaN"])
def test_what_is_not_a_run_is_called_damaged_and_never_half_read(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(RecordError, match=r"run\.json") as caught:
        Run.read(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    make_run().write(tmp_path)
    rewrite(tmp_path, {"schema": 99})
    with pytest.raises(RecordError, match="newer hotlap: its schema is 99"):
        Run.read(tmp_path)


def test_a_writer_killed_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(path, {"old": True})
    done = subprocess.run([sys.executable, "-c", WRITE_HALF, str(path)], timeout=60)
    assert done.returncode == -9
    assert json.loads(path.read_text()) == {"old": True}


def test_a_value_that_cannot_be_written_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    write_json(path, {"old": True})
    with pytest.raises(TypeError):
        write_json(path, {"new": object()})
    assert json.loads(path.read_text()) == {"old": True}
    assert os.listdir(tmp_path) == ["run.json"]


def test_a_written_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    write_json(tmp_path / "run.json", {})
    (tmp_path / "other").touch()
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1
