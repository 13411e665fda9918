"""The cluster that the tests run on is a real one: it keeps accounts and refuses what it must."""

from __future__ import annotations

from slurm_cluster import NODES, Cluster, wait_for


def test_a_finished_job_is_in_the_accounts(cluster: Cluster) -> None:
    job = cluster.sbatch("echo $SLURM_JOB_ID", "--account=abc@v100", "--gres=gpu:2").strip()
    ask = ["sacct", "-n", "-X", "-P", "-j", job, "-o", "State,Account,QOS"]
    expected = ["COMPLETED", "abc@v100", "qos_gpu-t3"]
    wait_for(lambda: cluster.run(ask).stdout.strip().split("|") == expected, "sacct", 20)


def test_more_time_than_a_qos_allows_is_refused_at_submission(cluster: Cluster) -> None:
    words = ["srun", "--account=abc@v100", "--qos=qos_gpu-dev", "--time=10:00:00", "true"]
    refused = cluster.run(words)
    assert refused.returncode != 0
    assert "QOS" in refused.stderr


def test_each_node_has_its_own_name_and_knows_the_others(cluster: Cluster) -> None:
    assert sorted(cluster.srun("-N2", "hostname").split()) == ["v1", "v2"]
    assert len(cluster.srun("getent", "hosts", *NODES).splitlines()) == len(NODES)
