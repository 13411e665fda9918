"""A profile as key and value, and as the text of its file."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any

from hotlap.records.cluster import Cluster
from hotlap.slurm.profile import GENERAL


def flatten(cluster: Cluster) -> dict[str, Any]:
    """Every value that says something, by its key."""
    general = {f"cluster.{name}": getattr(cluster, name) for name in GENERAL}
    found: dict[str, Any] = {key: value for key, value in general.items() if value}
    found |= {f"environment.{name}": value for name, value in cluster.environment.items()}
    for group in ("nodes", "partitions", "qos", "storage"):
        for name, record in getattr(cluster, group).items():
            for one in fields(record):
                value = getattr(record, one.name)
                if value != one.default:
                    found[f"{group}.{name}.{one.name}"] = value
    return found


def to_toml(cluster: Cluster) -> str:
    """The profile as a file that gives it again."""
    lines = [
        f"# {cluster.title}",
        f"name = {_toml(cluster.name)}",
        f"title = {_toml(cluster.title)}",
    ]
    for name, source in cluster.sources.items():
        lines += ["", f"[sources.{_key(name)}]", f"where = {_toml(source.where)}"]
        lines.append(f"date = {source.date}")
        if not source.confirmed:
            lines.append("confirmed = false")
    values = flatten(cluster)
    by_table: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for key in values:
        # A partition's name may hold dots; a field's never does.
        group, _, rest = key.partition(".")
        inner, _, field = rest.rpartition(".")
        by_table.setdefault((group, inner) if inner else (group,), []).append((field, key))
    for path, members in by_table.items():
        common = cluster.provenance[members[0][1]]
        lines += ["", f"[{'.'.join(map(_key, path))}]", f"source = {_toml(common)}"]
        for field, key in members:
            text, source_name = _toml(values[key]), cluster.provenance[key]
            if source_name != common:
                text = f"{{ value = {text}, source = {_toml(source_name)} }}"
            lines.append(f"{_key(field)} = {text}")
    for group in ("nodes", "partitions", "qos"):  # an entry of which nothing is known but its name
        for name in getattr(cluster, group):
            if (group, name) not in by_table:
                lines += ["", f"[{group}.{_key(name)}]"]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def _toml(value: Any) -> str:
    if isinstance(value, float) and value == int(value):
        value = int(value)
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
