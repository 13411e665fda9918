"""Profiles of clusters: those of the package keep a contract, a wrong one is one sentence."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from slurm_cluster import Cluster

from hotlap.cli import main
from hotlap.errors import UsageError
from hotlap.records.job import Ask
from hotlap.report.clusters import render_cluster
from hotlap.slurm.catalogue import SHIPPED, find_cluster, profile_paths
from hotlap.slurm.profile import parse_profile, read_profile
from hotlap.slurm.profile_text import flatten, to_toml
from hotlap.slurm.resources import choose

HOTLAP = (sys.executable, "-m", "hotlap")
NAMES = sorted(path.stem for path in SHIPPED.glob("*.toml"))
SMALL = """
name = "small"
title = "Small"
[sources.docs]
where = "https://docs.example.org"
date = 2026-11-15
[nodes.big]
source = "docs"
gpu = "h100-80gb"
gpus = 4
cores = 96
cores_per_gpu = 24
[partitions.gpu]
source = "docs"
node = "big"
"""


def test_the_clusters_that_were_promised_are_there() -> None:
    assert {"jean-zay", "snellius", "leonardo", "lumi", "juwels-booster"} <= set(NAMES)
    assert {"marenostrum5", "perlmutter"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_value_of_a_shipped_profile_has_a_source_with_a_place_and_a_day(name: str) -> None:
    cluster = find_cluster(name)
    values = flatten(cluster)
    assert len(values) >= 8
    assert set(values) <= set(cluster.provenance)
    assert all("http" in source.where for source in cluster.sources.values())
    assert set(cluster.provenance.values()) == set(cluster.sources)


@pytest.mark.parametrize("name", NAMES)
def test_every_partition_of_a_shipped_profile_can_run_one_gpu_and_two_nodes(name: str) -> None:
    cluster = find_cluster(name)
    for key, partition in cluster.partitions.items():
        node = cluster.nodes[partition.node]
        one = choose(cluster, Ask(gpus=1, hours=0.25, partition=key))[0]
        threads = 1 if cluster.hint else node.threads_per_core
        assert (one.nodes, one.tasks_per_node) == (1, 1)
        assert one.cpus_per_task == node.cores_per_gpu * threads
        two = choose(cluster, Ask(gpus=2 * node.gpus, hours=0.25, partition=key))[0]
        assert (two.nodes, two.tasks_per_node) == (2, node.gpus)
        assert two.tasks_per_node * two.cpus_per_task <= node.cores * threads


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_written_again_is_the_same_profile(name: str, tmp_path: Path) -> None:
    cluster = find_cluster(name)
    path = tmp_path / f"{name}.toml"
    path.write_text(to_toml(cluster))
    assert read_profile(path) == cluster


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('name = "small"', "", "key 'name' is missing"),
        ("gpus = 4", 'gpus = "four"', "key 'nodes.big.gpus' is 'four'; a whole number is expected"),
        ("gpus = 4", "gpus = 0", "key 'nodes.big.gpus' is 0; a number above zero is expected"),
        ("gpus = 4", "", "key 'nodes.big.gpus' is missing"),
        ("gpus = 4", "gpu_s = 4", "key 'nodes.big.gpu_s' is unknown; did you mean gpus?"),
        ("gpus = 4", "gpus = { valu = 4 }", "key 'nodes.big.gpus.valu' is unknown"),
        ("gpus = 4", "gpus = { source = 'docs' }", "key 'nodes.big.gpus.value' is missing"),
        ("cores_per_gpu = 24", "cores_per_gpu = 25", "more than the 96 cores of a node"),
        ('node = "big"', 'node = "bigger"', "'bigger'; one of big is expected"),
        ('source = "docs"', "", "has no source; write source = NAME"),
        ('source = "docs"', 'source = "talk"', "the source 'talk', which is not in [sources]"),
        ("date = 2026-11-15", 'date = "lately"', "'lately'; a day as 2026-11-15 is expected"),
        ("[nodes.big]", "nodes.big = 4\n[partitions.gpu]", "is no TOML"),
        ("[sources.docs]", "[sources]\ntalk = 4\n[sources.docs]", "'sources.talk' is 4; a table"),
        ("[nodes.big]", "[nods.big]", "key 'nods' is unknown; did you mean nodes?"),
        ("gpus = 4", "gpus = ", "is no TOML"),
    ],
)
def test_a_wrong_profile_is_one_sentence_that_names_the_key(
    old: str, new: str, sentence: str
) -> None:
    assert old in SMALL
    with pytest.raises(UsageError) as error:
        parse_profile(SMALL.replace(old, new, 1), "small.toml")
    assert sentence in str(error.value)
    assert "small.toml" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_users_own_file_comes_before_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "hotlap" / "clusters"
    folder.mkdir(parents=True)
    (folder / "lumi.toml").write_text(SMALL.replace("small", "lumi"))
    (folder / "small.toml").write_text(SMALL)
    assert find_cluster("lumi").title == "Small"
    assert {"small", "jean-zay"} <= set(profile_paths())
    with pytest.raises(UsageError, match="there is no cluster 'smal'; did you mean small"):
        find_cluster("smal")


def test_clusters_are_listed_and_shown_where_there_is_no_slurm(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert main(["clusters"]) == 0
    assert "jean-zay" in capsys.readouterr().out
    assert main(["clusters", "show", "jean-zay"]) == 0
    shown = capsys.readouterr().out
    assert "qos.qos_gpu_h100-t4.max_gpus_per_job" in shown
    assert "http://www.idris.fr" in shown
    assert main(["clusters", "discover"]) == 2
    assert capsys.readouterr().err.startswith("hotlap: there is no Slurm here")


def test_a_discovered_profile_is_that_of_the_cluster_and_agrees_with_it(
    cluster: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "mini.toml"
    written = cluster.run([*HOTLAP, "clusters", "discover", "-o", str(path)])
    assert written.returncode == 0, written.stderr
    found = read_profile(path)
    nodes = {key: found.nodes[one.node] for key, one in found.partitions.items()}
    shapes = {key: (node.gpu, node.gpus, node.cores) for key, node in nodes.items()}
    assert shapes == {
        "gpu_p13": ("v100", 4, 40),
        "gpu_p5": ("a100", 8, 64),
        "gpu_p6": ("h100", 4, 96),
    }
    assert found.partitions["gpu_p5"].max_hours == 20
    assert found.partitions["gpu_p13"].default
    dev = found.qos["qos_gpu-dev"]
    assert (dev.max_hours, dev.max_gpus_per_user) == (2, 16)
    agreed = cluster.run([*HOTLAP, "clusters", "check", str(path)])
    assert (agreed.returncode, agreed.stdout) == (
        0,
        "the profile of mini agrees with the cluster\n",
    )


def test_a_profile_that_is_out_of_date_is_told_value_by_value(
    cluster: Cluster, tmp_path: Path
) -> None:
    path, told = tmp_path / "mini.toml", tmp_path / "told.json"
    cluster.run([*HOTLAP, "clusters", "discover", "-o", str(path)])
    text = path.read_text().replace("max_hours = 2\n", "max_hours = 3\n")
    path.write_text(text.replace("gpus = 8", "gpus = 6").replace("[qos.normal]", "[qos.gone]"))
    checked = cluster.run([*HOTLAP, "clusters", "check", str(path), "--json", str(told)])
    assert checked.returncode == 1
    assert json.loads(told.read_text())["differences"] == checked.stdout.splitlines()
    assert sorted(checked.stdout.splitlines()) == [
        "nodes.8xa100 has 6 GPUs and 64 cores in the profile; the nodes of gpu_p5 have "
        "8 GPUs and 64 cores",
        "qos.gone: the cluster has no such QoS",
        "qos.qos_gpu-dev.max_hours is 3 in the profile; the cluster says 2",
    ]


def test_what_is_second_hand_is_said_to_be() -> None:
    sure = parse_profile(SMALL, "sure.toml")
    doubtful = parse_profile(
        SMALL.replace("date = 2026-11-15", "date = 2026-11-15\nconfirmed = false"), "doubtful.toml"
    )
    assert "second-hand" not in render_cluster(sure, flatten(sure))
    assert "second-hand" in render_cluster(doubtful, flatten(doubtful))
    assert parse_profile(to_toml(doubtful), "again.toml").sources == doubtful.sources


@pytest.mark.parametrize("name", ["lumi", "perlmutter"])
def test_the_network_settings_that_a_centre_documents_are_in_its_jobs_and_have_a_source(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.chdir(tmp_path)
    cluster = find_cluster(name)
    assert any(key.startswith("NCCL_") for key in cluster.environment)
    words = ["submit", "--dry-run", "--cluster", name, "--hours", "1", "--gpus", "16"]
    assert main([*words, "--env", "NCCL_SOCKET_IFNAME=mine0", "true"]) == 0
    script = capsys.readouterr().out.splitlines()
    for key, value in cluster.environment.items():
        expected = "mine0" if key == "NCCL_SOCKET_IFNAME" else value
        assert f"export {key}={expected}" in script
        assert cluster.sources[cluster.provenance[f"environment.{key}"]].confirmed
