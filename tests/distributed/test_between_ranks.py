"""Which rank a process is, without torch, and what is said where there is only one."""

from __future__ import annotations

import pytest

from hotlap.distributed.between_ranks import find_rank, measure_between_ranks


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({}, None),
        ({"RANK": "3", "WORLD_SIZE": "4"}, 3),
        ({"RANK": "0", "WORLD_SIZE": "1"}, None),
        ({"RANK": "3"}, None),
        ({"RANK": "three", "WORLD_SIZE": "4"}, None),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, 1),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, 1),
        ({"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4"}, 2),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),  # srun --pty bash
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),  # the script of a job
        # torchrun within srun: what is nearest is right
        ({"RANK": "5", "WORLD_SIZE": "8", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, 5),
    ],
)
def test_the_rank_is_that_of_the_nearest_launcher(
    environ: dict[str, str], rank: int | None
) -> None:
    assert find_rank(environ) == rank


def test_one_process_has_nobody_to_talk_to_and_starts_nothing() -> None:
    found = measure_between_ranks(1, is_quick=True, environ={})
    assert found.exchanges == ()
    assert "torchrun" in found.note


@pytest.mark.timeout(120)
def test_ranks_that_cannot_meet_are_a_line() -> None:
    environ = {"RANK": "7", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    found = measure_between_ranks(0, is_quick=True, environ=environ)
    assert found.exchanges == ()
    assert found.note.startswith("not measured: ")
    assert "RANK" in found.note
