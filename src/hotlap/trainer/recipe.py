"""Recipes: settings by name, with changes from the command line.

A recipe is a TOML file of the package or of the user's own. `key=value` changes one setting: the
key with its table (`optimizer.lr=0.1`), or alone where only one table has it (`lr=0.1`); the value
as TOML writes it, or a word.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from hotlap.distributed.mesh import DIMENSIONS, parse_mesh
from hotlap.errors import UsageError
from hotlap.records.codec import from_json
from hotlap.trainer.settings import TrainSettings, check

FOLDER = Path(__file__).parent / "recipes"


def recipes() -> dict[str, str]:
    """The names of the recipes of the package, with what each is for."""
    return {path.stem: _first_comment(path) for path in sorted(FOLDER.glob("*.toml"))}


def _first_comment(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ")


def resolve(recipe: str, changes: Iterable[str] = ()) -> TrainSettings:
    """The settings of a recipe with changes, checked."""
    document = _read(_path_of(recipe))
    for change in changes:
        _apply(document, change)
    settings = read_settings(document)
    check(settings)
    return settings


def _path_of(recipe: str) -> Path:
    if recipe.endswith(".toml"):
        path = Path(recipe)
        if not path.is_file():
            raise UsageError(f"the recipe {recipe} does not exist")
        return path
    path = FOLDER / f"{recipe}.toml"
    if "/" in recipe or not path.is_file():
        names = ", ".join(recipes())
        raise UsageError(f"'{recipe}' is no recipe; there are {names}, or a file's path")
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        return _toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"the recipe {path} cannot be read: {error}") from None


def _toml(text: str) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


# Changes --------------------------------------------------------------------------------------


def _apply(document: dict[str, Any], change: str) -> None:
    key, equals, text = change.partition("=")
    if not equals or not key:
        raise UsageError(f"'{change}' is no setting; one is written key=value, as batch=64")
    if key in DIMENSIONS or key == "mesh":
        table, name = "mesh", key
    else:
        table, name = _place(key)
    inner = document.setdefault(table, {})
    if not isinstance(inner, dict):
        raise UsageError(f"'{table}' is a table of settings; {inner!r} was found")
    if name == "mesh":
        inner["layout"] = text
    else:
        inner[name] = _value(text)


def _place(key: str) -> tuple[str, str]:
    """The table and the name of a key."""
    known = keys()
    if key in known:
        table, _, name = key.partition(".")
        return table, name
    owners = [full for full in known if full.partition(".")[2] == key]
    if len(owners) == 1:
        table, _, name = owners[0].partition(".")
        return table, name
    if owners:
        raise UsageError(f"'{key}' could be {' or '.join(owners)}: write which")
    raise UsageError(_unknown(key, known))


def _unknown(key: str, known: Iterable[str]) -> str:
    by_name = {name: full for full in known for name in (full, full.partition(".")[2])}
    near = [by_name[name] for name in difflib.get_close_matches(key, by_name, 3, 0.6)]
    hint = f"; did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
    return f"there is no setting '{key}'{hint or '; --show lists them'}"


def _value(text: str) -> Any:
    try:
        return _toml(f"value = {text}")["value"]
    except ValueError:
        return text


@cache
def keys() -> dict[str, Any]:
    """Every key with its type: 'optimizer.lr'."""
    found: dict[str, Any] = {}
    for table, kind in get_type_hints(TrainSettings).items():
        for name, hint in get_type_hints(kind).items():
            found[f"{table}.{name}"] = hint
    return found


# Reading --------------------------------------------------------------------------------------


def read_settings(document: Mapping[str, Any]) -> TrainSettings:
    """Settings from tables: an unknown key or a wrong type is one sentence."""
    document = {table: dict(inner) if isinstance(inner, dict) else inner
                for table, inner in document.items()}  # fmt: skip
    _refuse_unknown(document)
    layout = document.get("mesh", {}).pop("layout", None)
    settings = from_json(TrainSettings, document, "")
    data, mesh = settings.data, settings.mesh
    if not data.image_size and data.kind != "idx":  # whose files know their size
        data = replace(data, image_size=settings.model.image_size)
    if layout is not None:
        mesh = parse_mesh(str(layout), mesh)
    return replace(settings, data=data, mesh=mesh)


def _refuse_unknown(document: Mapping[str, Any]) -> None:
    tables = get_type_hints(TrainSettings)
    for table, inner in document.items():
        if table not in tables:
            raise UsageError(_unknown(table, keys()))
        if not isinstance(inner, dict):
            raise UsageError(f"'{table}' is a table of settings; {inner!r} was found")
        for name in inner:
            if f"{table}.{name}" not in keys() and (table, name) != ("mesh", "layout"):
                raise UsageError(_unknown(f"{table}.{name}", keys()))


# Showing --------------------------------------------------------------------------------------


def show(settings: TrainSettings) -> str:
    """The settings as a recipe that gives them."""
    lines: list[str] = []
    for table in fields(settings):
        lines += ["", f"[{table.name}]"]
        part = getattr(settings, table.name)
        lines += [f"{one.name} = {_toml_value(getattr(part, one.name))}" for one in fields(part)
                  if getattr(part, one.name) is not None]  # fmt: skip
    return "\n".join(lines[1:])


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    if is_dataclass(value):
        pairs = {one.name: getattr(value, one.name) for one in fields(value)}
        return _toml_value(pairs)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name} = {_toml_value(v)}" for name, v in value.items()) + "}"
    return repr(value)
