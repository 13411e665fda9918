"""From 'N GPUs for T hours' to nodes, tasks, cores, partition, QoS and account."""

from __future__ import annotations

import pytest

from hotlap.errors import UsageError
from hotlap.records.job import Ask, Association, Resources, Rights
from hotlap.slurm.catalogue import find_cluster
from hotlap.slurm.resources import choose

V100 = Association("abc@v100", "", ("qos_gpu-t3", "qos_gpu-dev"), "qos_gpu-t3")
H100 = Association("abc@h100", "", ("qos_gpu_h100-t3", "qos_gpu_h100-dev"), "qos_gpu_h100-t3")


def best(name: str, ask: Ask, rights: Rights | None = None) -> Resources:
    return choose(find_cluster(name), ask, rights)[0]


def refused(name: str, ask: Ask, rights: Rights | None = None) -> str:
    with pytest.raises(UsageError) as error:
        choose(find_cluster(name), ask, rights)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("name", "ask", "nodes", "tasks", "cpus", "partition", "qos"),
    [
        ("jean-zay", Ask(16, 5, "h100"), 4, 4, 24, "gpu_p6", "qos_gpu_h100-t3"),
        ("jean-zay", Ask(24, 5, "a100"), 3, 8, 8, "gpu_p5", "qos_gpu_a100-t3"),
        ("jean-zay", Ask(12, 5, "a100", gpus_per_node=6), 2, 6, 8, "gpu_p5", "qos_gpu_a100-t3"),
        ("jean-zay", Ask(16, 30, "h100"), 4, 4, 24, "gpu_p6", "qos_gpu_h100-t4"),
        ("jean-zay", Ask(1, 1), 1, 1, 10, "gpu_p13", "qos_gpu-t3"),
        ("jean-zay", Ask(8, 1, "a100", launcher="node"), 1, 1, 64, "gpu_p5", "qos_gpu_a100-t3"),
        ("jean-zay", Ask(4, 1, "v100", qos="qos_gpu-dev"), 1, 4, 10, "gpu_p13", "qos_gpu-dev"),
        ("lumi", Ask(4, 60), 1, 4, 7, "small-g", None),
        ("lumi", Ask(64, 10), 8, 8, 7, "standard-g", None),
        ("perlmutter", Ask(2, 1), 1, 2, 32, None, "shared"),
        ("perlmutter", Ask(8, 1, "a100-80gb"), 2, 4, 32, None, "regular"),
    ],
)
def test_a_request_gets_whole_nodes_and_the_qos_that_allows_it(
    name: str, ask: Ask, nodes: int, tasks: int, cpus: int, partition: str | None, qos: str | None
) -> None:
    found = best(name, ask)
    assert (found.nodes, found.tasks_per_node, found.cpus_per_task) == (nodes, tasks, cpus)
    assert (found.partition, found.qos) == (partition, qos)
    assert found.gpus == ask.gpus


@pytest.mark.parametrize(
    ("name", "ask", "parts"),
    [
        ("jean-zay", Ask(12, 5, "a100"), ["8 or 16 would", "--gpus-per-node 6 for 2 nodes"]),
        ("jean-zay", Ask(13, 5, "h100"), ["12 or 16 would"]),
        ("jean-zay", Ask(8, 30, "a100"), ["8 GPUs for 20 h (gpu_p5 with qos_gpu_a100-t3)"]),
        (
            "jean-zay",
            Ask(32, 30, "h100"),
            ["32 GPUs for 20 h (gpu_p6 with qos_gpu_h100-t3)", "16 GPUs for 30 h"],
        ),
        ("jean-zay", Ask(1024, 101, "h100"), ["16 GPUs for 100 h"]),
        ("lumi", Ask(64, 60), ["64 GPUs for 48 h (standard-g) or 32 GPUs for 60 h (small-g)"]),
        ("snellius", Ask(1, 1, "b200"), ["has no GPU 'b200'", "a100, h100"]),
        ("snellius", Ask(1, 1, partition="gpu"), ["no partition 'gpu'", "gpu_a100, gpu_h100"]),
        ("leonardo", Ask(8, 1, gpus_per_node=5), ["--gpus-per-node is 5; a node has 4 GPUs"]),
        ("leonardo", Ask(8, 1, gpus_per_node=3), ["does not come out even"]),
    ],
)
def test_what_cannot_run_is_one_sentence_with_the_nearest_that_can(
    name: str, ask: Ask, parts: list[str]
) -> None:
    sentence = refused(name, ask)
    assert all(part in sentence for part in parts), sentence


def test_what_is_offered_as_the_nearest_can_run() -> None:
    for gpus, hours in ((32, 20), (16, 30)):
        assert best("jean-zay", Ask(gpus, hours, "h100")).gpus == gpus


def test_the_account_and_the_qos_are_among_the_users_own() -> None:
    rights = Rights((V100, H100), "abc@v100")
    found = best("jean-zay", Ask(8, 5, "h100"), rights)
    assert (found.account, found.qos) == ("abc@h100", "qos_gpu_h100-t3")
    # The QoS for 30 h is there, but not for this user.
    assert "20 h" in refused("jean-zay", Ask(8, 30, "h100"), rights)
    assert "'qos_gpu_h100-t4'" in refused(
        "jean-zay", Ask(8, 5, "h100", qos="qos_gpu_h100-t4"), rights
    )
    assert "yours are abc@v100, abc@h100" in refused(
        "jean-zay", Ask(8, 5, "h100", account="xyz@h100"), rights
    )
    assert "end in @a100" in refused("jean-zay", Ask(8, 5, "a100"), rights)


def test_a_project_alone_is_an_account_of_the_kind_of_gpu() -> None:
    assert best("jean-zay", Ask(8, 5, "h100", account="abc")).account == "abc@h100"
    assert best("jean-zay", Ask(4, 1, "v100-32gb", account="abc")).account == "abc@v100"
    assert best("jean-zay", Ask(8, 5, "h100", account="abc@h100")).account == "abc@h100"
    assert best("leonardo", Ask(4, 1, account="abc")).account == "abc"
    refusal = refused("jean-zay", Ask(8, 5, "h100", account="abc@a100"))
    assert refusal == "--account is 'abc@a100'; gpu_p6 takes accounts that end in @h100"


def test_two_accounts_that_could_pay_have_to_be_told_apart() -> None:
    other = Association("xyz@v100", "", V100.qos, "qos_gpu-t3")
    rights = Rights((V100, other), "abc@v100")
    assert "abc@v100, xyz@v100; choose one with --account" in refused(
        "jean-zay", Ask(4, 1, "v100-32gb"), rights
    )
    chosen = best("jean-zay", Ask(4, 1, "v100-32gb", account="xyz@v100"), rights)
    assert chosen.account == "xyz@v100"


def test_whole_nodes_are_paid_where_jobs_have_whole_nodes() -> None:
    half = best("lumi", Ask(4, 10, partition="standard-g"))
    assert (half.billed_gpus, half.gpu_hours, half.charge) == (8, 80, 40)
    shared = best("lumi", Ask(4, 10, partition="small-g"))
    assert (shared.billed_gpus, shared.gpu_hours, shared.charge) == (4, 40, 20)
    assert best("snellius", Ask(2, 3, "a100")).charge == 2 * 3 * 128
    assert best("snellius", Ask(2, 3, "h100")).charge is None
