"""Clusters as plain text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hotlap.records.cluster import Cluster

COLUMNS = "{:<16} {:<32} {}"


def render_list(clusters: Sequence[Cluster]) -> str:
    """One line a cluster."""
    lines = [COLUMNS.format("name", "", "nodes")]
    for cluster in clusters:
        nodes = dict.fromkeys(f"{node.gpus} x {node.gpu}" for node in cluster.nodes.values())
        lines.append(COLUMNS.format(cluster.name, cluster.title, ", ".join(nodes)))
    return "\n".join(lines)


def render_cluster(cluster: Cluster, values: Mapping[str, Any]) -> str:
    """Every value of a profile, with the number of its source, and the sources below."""
    numbers = {name: n for n, name in enumerate(cluster.sources, 1)}
    width = max(map(len, values), default=0)
    lines = [cluster.title, ""]
    table = ""
    for key, value in values.items():
        if table and key.rpartition(".")[0] != table:
            lines.append("")
        table = key.rpartition(".")[0]
        lines.append(f"  {key:<{width}}  {_text(value)} [{numbers[cluster.provenance[key]]}]")
    lines.append("")
    for name, source in cluster.sources.items():
        doubt = "" if source.confirmed else ", second-hand: not all of it was read there"
        lines.append(f"  [{numbers[name]}] {source.where} ({source.date}{doubt})")
    if not all(source.confirmed for source in cluster.sources.values()):
        lines += ["", "  `hotlap clusters check` compares these values with the live cluster."]
    return "\n".join(lines)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(value) if isinstance(value, tuple) else str(value)
