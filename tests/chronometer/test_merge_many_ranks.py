"""A thousand ranks: their files merge to one Run with the right sums and means."""

from __future__ import annotations

from pathlib import Path

import pytest
from making import make_rank, make_table, merged

from hotlap.chronometer.collect import collect_ranks

N_RANKS = 1024
N_STEPS = 100


def test_the_files_of_1024_ranks_merge_to_one_run(tmp_path: Path) -> None:
    for rank in range(N_RANKS):
        length = 2000 if rank == 77 else 1000  # one straggler
        step = {"data": length - 900, "forward": 300, "backward": 500, "optimizer": 100}
        table = make_table([step] * N_STEPS, losses=[float(rank)] * N_STEPS)
        make_rank(table, rank=rank, world_size=N_RANKS, pid=rank).write(tmp_path)

    records, notes = collect_ranks(tmp_path)
    run = merged(records, warmup=10)

    assert notes == []
    assert run.notes == ()
    assert run.world_size == len(run.ranks) == N_RANKS
    assert [one.rank for one in run.ranks] == list(range(N_RANKS))
    assert (run.steps.measured, run.steps.warmup) == (90, 10)
    mean_s = (1000 + 1000 / N_RANKS) * 1e-9
    assert run.step_s is not None
    assert run.phases_s is not None
    assert run.step_s.mean == pytest.approx(mean_s)
    assert run.phases_s.data == pytest.approx(mean_s - 900e-9)
    assert run.phases_s.backward == pytest.approx(500e-9)
    assert sum(one.samples or 0 for one in run.ranks) == N_RANKS * 90 * 8
    assert run.samples_per_s == pytest.approx((N_RANKS - 1) * 8 / 1000e-9 + 8 / 2000e-9)
    assert max(run.ranks, key=lambda one: one.step_s or 0).rank == 77
    assert run.loss == (pytest.approx((N_RANKS - 1) / 2),) * N_STEPS
    assert run.flops.per_step == N_RANKS * 100.0
    assert run.memory.host_peak_bytes == 1000 + N_RANKS - 1
