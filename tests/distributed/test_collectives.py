"""Every collective gives what it must, and what does not is reported instead of timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotlap.distributed.collectives import Record, format_size, heading, main, parse_size, row
from hotlap.distributed.exchanges import OPERATIONS
from hotlap.errors import UsageError

N_RANKS = 3
WORDS = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")

pytestmark = pytest.mark.timeout(90)


def torchrun(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*WORDS, str(N_RANKS), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=80,
    )


def test_all_operations_are_right_and_timed_on_three_ranks(tmp_path: Path) -> None:
    written = tmp_path / "records.json"
    options = ("--device", "cpu", "--repeats", "3", "--sizes", "8,40KiB", "--json", str(written))
    done = torchrun("-m", "hotlap.distributed.collectives", *options)
    assert done.returncode == 0, done.stderr
    document = json.loads(written.read_text())
    records = document["records"]
    assert document["launch"]["world_size"] == N_RANKS
    # Sizes are rounded up to as many elements for each rank.
    assert [(one["operation"], one["n_bytes"]) for one in records] == [
        (operation.name, n_bytes) for operation in OPERATIONS for n_bytes in (12, 40_968)
    ]
    for one in records:
        assert one["wrong_ranks"] == []
        assert 0 < one["p10_s"] <= one["median_s"] <= one["p90_s"]
        assert one["algorithm_gb_per_s"] == pytest.approx(one["n_bytes"] / 1e9 / one["median_s"])
    assert all(f"{one.name}: {one.words}" in done.stdout for one in OPERATIONS)


LIE = """
import os, sys
from dataclasses import asdict, replace
import torch, torch.distributed as dist
from hotlap.distributed import collectives
from hotlap.distributed.exchanges import OPERATIONS
from hotlap.distributed.launch import detect, start

def off_by_one(operation):
    def prepare(ranks, n):
        exchange = operation.prepare(ranks, n)
        def call():
            exchange.call()
            if ranks.rank == 1 and exchange.result is not None:
                exchange.result[-1] += 1
        return replace(exchange, call=call)
    return replace(operation, prepare=prepare)

lies = [off_by_one(one) for one in OPERATIONS]
with start(detect(os.environ), timeout_s=40, device="cpu") as started:
    records = collectives.run([1024], started.device, 2, lies)
for one in records:
    # Rank 1 is given nothing by these: it has nothing to be wrong about.
    expected = () if one.operation in ("reduce", "gather") else (1,)
    assert one.wrong_ranks == expected, one
    assert (one.median_s is None) == bool(expected), one
"""


def test_one_wrong_element_on_one_rank_is_seen_by_all_and_not_timed(tmp_path: Path) -> None:
    program = tmp_path / "lie.py"
    program.write_text(LIE)
    done = torchrun(str(program))
    assert done.returncode == 0, done.stderr


def test_the_bus_factors_are_those_of_nccl_tests() -> None:
    factors = {one.name: one.bus_factor(4) for one in OPERATIONS}
    assert factors == {
        "send_recv": 1.0,
        "broadcast": 1.0,
        "reduce": 1.0,
        "all_reduce": 1.5,
        "gather": 0.75,
        "scatter": 0.75,
        "all_gather": 0.75,
        "reduce_scatter": 0.75,
        "all_to_all": 0.75,
    }


def test_a_row_shows_a_time_or_that_the_result_is_wrong() -> None:
    right = Record("reduce", 1 << 20, 4, "cpu", (), 9, 2e-3, 1e-3, 3e-3, 0.524, 0.524)
    assert row(right).split() == ["1", "MiB", "2,000", "µs", "1,000", "µs", "3,000", "µs"] + (
        ["0.524"] * 2
    )
    wrong = Record("reduce", 1 << 20, 4, "cpu", (0, 2), 0, None, None, None, None, None)
    assert "WRONG RESULT on ranks 0, 2" in row(wrong)
    assert "goes to one" in heading("reduce")


def test_one_process_is_told_how_to_start_several(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_STEP_ID"):
        monkeypatch.delenv(name, raising=False)
    assert main([]) == 2
    assert "torchrun --nproc-per-node 2" in capsys.readouterr().err


def test_sizes_are_read_and_written_with_their_units() -> None:
    assert [parse_size(text) for text in ("12", "3B", "4KiB", "2MiB", "1GiB")] == [
        12,
        3,
        4096,
        2 << 20,
        1 << 30,
    ]
    assert [format_size(n) for n in (12, 1536, 2 << 20)] == ["12 B", "1.5 KiB", "2 MiB"]


@pytest.mark.parametrize("text", ["", "0", "4kb", "-1", "1.5MiB"])
def test_a_size_that_is_none_is_named(text: str) -> None:
    with pytest.raises(UsageError, match=f"--sizes has '{text}'"):
        parse_size(text)
