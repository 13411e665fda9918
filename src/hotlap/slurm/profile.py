"""Profiles of clusters, read from TOML: every value has a source, and what is wrong is a sentence.

name = "mini"
[sources.docs]
where = "https://docs.example.org/nodes"
date = "2026-11-15"
[nodes.h100]
source = "docs"                               of all values of this table
gpus = 4
memory_gb = { value = 468, source = "talk" }  but this one
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Any

from hotlap.errors import RecordError, UsageError
from hotlap.records.cluster import Cluster, NodeType, Partition, Qos, Source, Storage
from hotlap.records.codec import from_json

GROUPS = {"nodes": NodeType, "partitions": Partition, "qos": Qos, "storage": Storage}
"""Tables of tables, by what each inner one is."""
GENERAL = (
    *("slurm_name", "account_form", "unit", "hint", "module_hint", "container"),
    "master_suffix",
)
"""What the table [cluster] may hold."""
COUNTS = ("gpus", "cores", "cores_per_gpu", "threads_per_core", "memory_gb")
"""Of a node, all above zero."""


def read_profile(path: Path) -> Cluster:
    """The profile in a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the cluster profile {path} cannot be read: {error}") from None
    return parse_profile(text, str(path))


def parse_profile(text: str, where: str) -> Cluster:
    """The profile that a text holds; `where` names it in an error."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return _build(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the cluster profile {where} is no TOML: {error}") from None
    except RecordError as error:
        raise UsageError(f"the cluster profile {where}: {error}") from None


def _build(document: dict[str, Any]) -> Cluster:
    _refuse_unknown("", document, ("name", "title", "sources", "cluster", "environment", *GROUPS))
    sources = _sources(document.get("sources", {}))
    provenance: dict[str, str] = {}
    plain: dict[str, Any] = {key: document[key] for key in ("name", "title") if key in document}
    plain |= _table("cluster", document.get("cluster", {}), GENERAL, sources, provenance)
    environment = document.get("environment", {})
    names = environment if isinstance(environment, dict) else ()
    plain["environment"] = _table("environment", environment, tuple(names), sources, provenance)
    for group, kind in GROUPS.items():
        fields = tuple(one.name for one in dataclasses.fields(kind))
        tables = _mapping(group, document.get(group, {}))
        plain[group] = {
            name: _table(f"{group}.{name}", inner, fields, sources, provenance)
            for name, inner in tables.items()
        }
    cluster = from_json(Cluster, plain, "")
    cluster = dataclasses.replace(cluster, sources=sources, provenance=provenance)
    _check(cluster)
    return cluster


def _sources(tables: Any) -> dict[str, Source]:
    found = {}
    for name, inner in _mapping("sources", tables).items():
        key = f"sources.{name}"
        _refuse_unknown(f"{key}.", _mapping(key, inner), ("where", "date", "confirmed"))
        plain = {k: v.isoformat() if isinstance(v, date) else v for k, v in inner.items()}
        found[name] = from_json(Source, plain, key)
        try:
            date.fromisoformat(found[name].date)
        except ValueError:
            raise RecordError(
                f"key '{key}.date' is '{found[name].date}'; a day as 2026-11-15 is expected"
            ) from None
    return found


def _table(
    key: str,
    inner: Any,
    fields: Iterable[str],
    sources: Mapping[str, Source],
    provenance: dict[str, str],
) -> dict[str, Any]:
    """The values of a table; where each was read goes into `provenance`."""
    values = dict(_mapping(key, inner))
    common = values.pop("source", None)
    _refuse_unknown(f"{key}.", values, (*fields, "source"))
    plain = {}
    for name, value in values.items():
        source = common
        if isinstance(value, dict):
            _refuse_unknown(f"{key}.{name}.", value, ("value", "source"))
            if "value" not in value:
                raise RecordError(f"key '{key}.{name}.value' is missing")
            source = value.get("source", common)
            value = value["value"]
        if source is None:
            raise RecordError(
                f"key '{key}.{name}' has no source; write source = NAME in [{key}], and "
                "[sources.NAME] with where and date"
            )
        if source not in sources:
            raise RecordError(
                f"key '{key}.{name}' has the source {source!r}, which is not in [sources]"
            )
        plain[name] = value
        provenance[f"{key}.{name}"] = str(source)
    return plain


def _mapping(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RecordError(f"key '{key}' is {value!r}; a table is expected")
    return value


def _refuse_unknown(prefix: str, found: Iterable[str], known: Iterable[str]) -> None:
    known = list(known)
    for name in found:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.6)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known))}"
            raise RecordError(f"key '{prefix}{name}' is unknown; {hint}")


def _check(cluster: Cluster) -> None:
    """What holds between values."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.-]*", cluster.name):
        raise RecordError(f"key 'name' is '{cluster.name}'; small letters, digits, - are expected")
    for name, node in cluster.nodes.items():
        _positive(f"nodes.{name}", node, COUNTS)
        if node.cores_per_gpu * node.gpus > node.cores:
            raise RecordError(
                f"key 'nodes.{name}.cores_per_gpu' is {node.cores_per_gpu}: with {node.gpus} GPUs "
                f"that is more than the {node.cores} cores of a node"
            )
    for name, one in cluster.partitions.items():
        _positive(f"partitions.{name}", one, ("max_hours", "max_nodes", "charge_per_gpu_hour"))
        _refer(f"partitions.{name}.node", one.node, cluster.nodes)
        if one.default_qos is not None:
            _refer(f"partitions.{name}.default_qos", one.default_qos, cluster.qos)
    for name, qos in cluster.qos.items():
        limits = ("max_hours", "max_gpus_per_job", "max_gpus_per_user", "max_nodes")
        _positive(f"qos.{name}", qos, limits)
        for partition in qos.partitions:
            _refer(f"qos.{name}.partitions", partition, cluster.partitions)


def _positive(key: str, record: Any, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(record, name)
        if value is not None and value <= 0:
            raise RecordError(f"key '{key}.{name}' is {value}; a number above zero is expected")


def _refer(key: str, name: str, known: Mapping[str, Any]) -> None:
    if name not in known:
        raise RecordError(f"key '{key}' is '{name}'; one of {', '.join(known)} is expected")
