"""How a process finds out how it was started, from environments as launchers leave them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from hotlap.distributed.launch import Launch, complete_environment, detect
from hotlap.distributed.slurm_step import expand_hosts, expand_tasks, meeting_port
from hotlap.errors import UsageError

# What Slurm 22.05 has set for jobs of five tasks on two nodes, less what nobody reads here.
JOB = {
    "SLURM_JOB_ID": "6",
    "SLURM_JOB_NODELIST": "v[1-2]",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NODELIST": "v[1-2]",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "5",
    "SLURM_TASKS_PER_NODE": "4,1",
}
SALLOC = {**JOB, "SLURM_JOB_NAME": "interactive"}
BATCH = {
    **JOB,
    "SLURMD_NODENAME": "v1",
    "SLURM_GTIDS": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
}
STEP = {
    **JOB,
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "v[1-2]",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "4,1",
}
FOURTH = {
    **STEP,
    "SLURM_GTIDS": "0,1,2,3",
    "SLURM_LOCALID": "3",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "3",
}
FIFTH = {
    **STEP,
    "SLURM_GTIDS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "4",
}
# `srun --nodes 1 --ntasks 1 --relative 1` in the batch script.
ON_THE_SECOND_NODE = {
    **JOB,
    "SLURM_GTIDS": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "1",
    "SLURM_NODEID": "0",
    "SLURM_NTASKS": "1",
    "SLURM_PROCID": "0",
    "SLURM_STEP_ID": "1",
    "SLURM_STEP_NODELIST": "v2",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURM_TASKS_PER_NODE": "1",
}
# The shell that salloc opens on the first node, at sites with use_interactive_step.
INTERACTIVE_STEP = {
    **BATCH,
    "SLURM_STEP_ID": "4294967290",
    "SLURM_STEP_NODELIST": "v1",
    "SLURM_STEP_NUM_TASKS": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}
# A batch job of two tasks on one node, submitted from the first task of a step of four on two.
SUBMITTED_FROM_A_STEP = {
    **BATCH,
    "SLURM_JOB_ID": "18",
    "SLURM_JOB_NODELIST": "v1",
    "SLURM_NNODES": "1",
    "SLURM_NODELIST": "v1",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "v[1-2]",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "3,1",
    "SLURM_TASKS_PER_NODE": "2",
}
PMI2 = {**FOURTH, "PMI_FD": "11", "PMI_JOBID": "6.0", "PMI_RANK": "3", "PMI_SIZE": "5"}
TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "v1",
    "MASTER_PORT": "41825",
    "TORCHELASTIC_RUN_ID": "none",
}
# The second of two torchruns, each with two processes.
TORCHRUN_IN_SRUN = {
    **ON_THE_SECOND_NODE,
    **TORCHRUN,
    "SLURM_NTASKS": "2",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "1",
    "SLURM_STEP_NODELIST": "v[1-2]",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
}
MVAPICH = {name.replace("OMPI", "MV2"): value for name, value in OPEN_MPI.items()}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}

ALONE = (0, 0, 1, 1, 1, 0, "127.0.0.1", 29500, "alone")


def place(launch: Launch) -> tuple[Any, ...]:
    """All of it but the reason."""
    return (
        *(launch.rank, launch.local_rank, launch.world_size, launch.local_world_size),
        *(launch.n_nodes, launch.node_rank, launch.master_addr, launch.master_port),
        launch.source,
    )


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        pytest.param({}, ALONE, id="nothing"),
        pytest.param(SALLOC, ALONE, id="the shell of salloc"),
        pytest.param(BATCH, ALONE, id="a batch script"),
        pytest.param(INTERACTIVE_STEP, ALONE, id="the shell of salloc on a node"),
        pytest.param(
            {**FOURTH, "SLURM_STEP_ID": "interactive"}, ALONE, id="a step that has a name"
        ),
        pytest.param(SUBMITTED_FROM_A_STEP, ALONE, id="a batch script submitted from a step"),
        pytest.param(FOURTH, (3, 3, 5, 4, 2, 0, "v1", 15006, "srun"), id="srun, first node"),
        pytest.param(FIFTH, (4, 0, 5, 1, 2, 1, "v1", 15006, "srun"), id="srun, second node"),
        pytest.param(
            ON_THE_SECOND_NODE, (0, 0, 1, 1, 1, 0, "v2", 22925, "srun"), id="srun, a later step"
        ),
        pytest.param(PMI2, (3, 3, 5, 4, 2, 0, "v1", 15006, "srun"), id="srun --mpi=pmi2"),
        pytest.param(
            {**FOURTH, "RANK": "3", "WORLD_SIZE": "5", "MASTER_ADDR": "v1-ib"},
            (3, 3, 5, 4, 2, 0, "v1-ib", 15006, "srun"),
            id="srun, and a script that sets RANK from SLURM_PROCID",
        ),
        pytest.param(
            {**FOURTH, "WORLD_SIZE": "5", "MASTER_PORT": "1234"},
            (3, 3, 5, 4, 2, 0, "v1", 1234, "srun"),
            id="srun, and a batch script that exports WORLD_SIZE and MASTER_PORT",
        ),
        pytest.param(TORCHRUN, (3, 1, 4, 2, 2, 1, "v1", 41825, "torchrun"), id="torchrun"),
        pytest.param(
            {**BATCH, **TORCHRUN},
            (3, 1, 4, 2, 2, 1, "v1", 41825, "torchrun"),
            id="torchrun in a batch script",
        ),
        pytest.param(
            TORCHRUN_IN_SRUN,
            (3, 1, 4, 2, 2, 1, "v1", 41825, "torchrun in srun"),
            id="torchrun in srun",
        ),
        pytest.param(
            {"RANK": "0", "WORLD_SIZE": "1"},
            (0, 0, 1, 1, 1, 0, "127.0.0.1", 29500, "torchrun"),
            id="one rank by hand",
        ),
        pytest.param(
            {**OPEN_MPI, "MASTER_ADDR": "n0"},
            (5, 1, 8, 4, 2, 1, "n0", 29500, "mpi"),
            id="Open MPI",
        ),
        pytest.param(
            {**MVAPICH, "MASTER_ADDR": "n0"},
            (5, 1, 8, 4, 2, 1, "n0", 29500, "mpi"),
            id="MVAPICH",
        ),
        pytest.param(HYDRA, (1, 1, 2, 2, 1, 0, "127.0.0.1", 29500, "mpi"), id="MPICH"),
        pytest.param(
            {**ON_THE_SECOND_NODE, **OPEN_MPI},
            (5, 1, 8, 4, 2, 1, "v1", 15006, "mpi"),
            id="Open MPI whose daemons srun has started",
        ),
    ],
)
def test_each_launcher_is_read_as_what_it_is(
    environ: dict[str, str], expected: tuple[Any, ...]
) -> None:
    assert place(detect(environ, lambda host: True)) == expected


def test_the_reason_says_how_to_have_the_ranks_that_were_asked_for() -> None:
    assert "job 6" in detect(BATCH).reason
    assert "srun would start 5" in detect(BATCH).reason
    assert "SLURM_PROCID=1 is the rank of torchrun itself" in detect(TORCHRUN_IN_SRUN).reason


def test_a_node_whose_name_does_not_resolve_meets_itself_on_loopback() -> None:
    launch = detect(ON_THE_SECOND_NODE, lambda host: False)
    assert launch.master_addr == "127.0.0.1"


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"RANK": "0"}, "RANK is set, but WORLD_SIZE is not"),
        ({**FOURTH, "RANK": "3"}, "RANK is set, but WORLD_SIZE is not"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE is 4, but RANK is not set"),
        ({**FOURTH, "WORLD_SIZE": "4"}, "WORLD_SIZE is 4"),
        ({**FOURTH, "LOCAL_RANK": "0"}, "LOCAL_RANK is 0"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "RANK is set, but LOCAL_RANK is not"),
        ({**TORCHRUN, "RANK": "4"}, "RANK is 4, but there are 4 ranks"),
        ({**TORCHRUN, "RANK": "-1"}, "RANK is '-1'"),
        ({**TORCHRUN, "WORLD_SIZE": "four"}, "WORLD_SIZE is 'four'"),
        ({**TORCHRUN, "WORLD_SIZE": "0"}, "RANK is 3, but there are 0 ranks"),
        ({**TORCHRUN, "LOCAL_RANK": "2"}, "LOCAL_RANK is 2"),
        ({**TORCHRUN, "LOCAL_WORLD_SIZE": "5"}, "LOCAL_WORLD_SIZE is 5"),
        ({**TORCHRUN, "GROUP_RANK": "2"}, "GROUP_RANK is 2"),
        ({**TORCHRUN, "MASTER_PORT": "70000"}, "MASTER_PORT is 70000"),
        ({**FOURTH, "SLURM_PROCID": "5"}, "SLURM_PROCID is 5"),
        ({**FOURTH, "SLURM_LOCALID": "4"}, "SLURM_LOCALID is 4"),
        ({**FOURTH, "SLURM_NODEID": "2"}, "SLURM_NODEID is 2"),
        ({**FOURTH, "SLURM_STEP_NUM_TASKS": "6"}, "SLURM_STEP_TASKS_PER_NODE is '4,1'"),
        ({**FOURTH, "SLURM_STEP_TASKS_PER_NODE": "4x"}, "SLURM_STEP_TASKS_PER_NODE is '4x'"),
        ({**FOURTH, "SLURM_STEP_NODELIST": "v[1-3]"}, "SLURM_STEP_NODELIST is 'v[1-3]'"),
        ({**FOURTH, "SLURM_STEP_NODELIST": "v[1-"}, "SLURM_STEP_NODELIST is 'v[1-'"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "OMPI_COMM_WORLD_SIZE is not"),
        (OPEN_MPI, "MASTER_ADDR is not set"),
    ],
)
def test_half_set_and_contradictory_variables_are_named(
    environ: dict[str, str], named: str
) -> None:
    with pytest.raises(UsageError) as raised:
        detect(environ, lambda host: True)
    assert named in str(raised.value)


def test_several_nodes_without_a_name_that_resolves_need_an_address() -> None:
    with pytest.raises(UsageError, match=r"MASTER_ADDR is not set.*v1, does not resolve"):
        detect(FOURTH, lambda host: False)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("login", "login"),
        ("node[01-03,7],gpu-a[1-2]b", "node01 node02 node03 node7 gpu-a1b gpu-a2b"),
        ("a,b[9-11],c", "a b9 b10 b11 c"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("rack[1-2]n[1-2]", "rack1n1 rack1n2 rack2n1 rack2n2"),
        ("jean-zay3.idris", "jean-zay3.idris"),
    ],
)
def test_lists_of_hosts_in_slurms_short_form(text: str, names: str) -> None:
    assert expand_hosts(text) == tuple(names.split())


@pytest.mark.parametrize("text", ["", "a,", "a[1-2", "a]", "a[x]", "a[]", "a b", "a[1--2]"])
def test_a_broken_list_of_hosts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no list of hosts"):
        expand_hosts(text)


def test_tasks_per_node_in_slurms_short_form() -> None:
    assert expand_tasks("4(x2),3") == (4, 4, 3)
    assert expand_tasks("1") == (1,)


def test_jobs_and_steps_that_may_share_a_node_meet_at_different_ports() -> None:
    recent = itertools.product(range(3_000_000, 3_000_800), range(10))
    ports = [meeting_port(job, step) for job, step in recent]
    assert len(set(ports)) == len(ports)
    assert all(15_000 <= port < 30_000 for port in ports)


def test_the_completed_environment_leaves_what_a_launcher_set() -> None:
    assert complete_environment(detect(TORCHRUN), TORCHRUN) == {}
    given = {**FOURTH, "MASTER_ADDR": "v1-ib"}
    assert complete_environment(detect(given), given) == {
        "RANK": "3",
        "WORLD_SIZE": "5",
        "LOCAL_RANK": "3",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_PORT": "15006",
    }
