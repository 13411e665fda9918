"""Dataclasses to JSON values and back, strictly.

Reading checks every key and every type, so that a damaged file is one sentence and never a
half-read record. JSON has no NaN or infinity: they are written as the strings "nan", "inf", "-inf".
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import tempfile
import types
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hotlap.errors import RecordError

T = TypeVar("T")
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def to_json(value: Any) -> Any:
    """The JSON value of a record."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def from_json(kind: type[T], value: Any, where: str) -> T:
    """The record of type `kind` that `value` holds; `where` names it in an error."""
    result: T = _read(kind, value, where)
    return result


def read_json(path: Path) -> Any:
    """The JSON document in a file, or one sentence about why there is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RecordError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path} cannot be read: {_reason(error)}") from None
    try:
        return json.loads(text)
    except ValueError as error:
        raise RecordError(f"{path} is damaged: it is not JSON ({error})") from None


def write_json(path: Path, value: Any) -> None:
    """Write a JSON document, whole or not at all."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """A JSON document on one line."""
    return json.dumps(to_json(value), allow_nan=False, separators=(",", ":")) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _read(kind: Any, value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(kind):
        return _read_dataclass(kind, value, where)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _read_optional(arguments, value, where)
    if origin is Literal:
        if value not in arguments:
            raise _wrong(where, value, "one of " + ", ".join(map(repr, arguments)))
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(where, value, "a list")
        return _read_tuple(arguments[0], value, where)
    if origin is dict:
        if not isinstance(value, dict):
            raise _wrong(where, value, "an object")
        return {key: _read(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    return _read_plain(kind, value, where)


_UNCHANGED_BY_READING: dict[Any, set[type]] = {
    int: {int},
    float: {float},
    str: {str},
    (int | None): {int, type(None)},
    (float | None): {float, type(None)},
}


def _read_tuple(kind: Any, items: list[Any], where: str) -> tuple[Any, ...]:
    # A thousand rank files hold millions of numbers: check a list of them in one pass.
    if set(map(type, items)) <= _UNCHANGED_BY_READING.get(kind, set()):
        return tuple(items)
    return tuple(_read(kind, item, f"{where}[{i}]") for i, item in enumerate(items))


def _read_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(where, value, "an object")
    fields = {}
    for field in dataclasses.fields(kind):
        key = f"{where}.{field.name}" if where else field.name
        if field.name in value:
            fields[field.name] = _read(_hints(kind)[field.name], value[field.name], key)
        elif field.default is dataclasses.MISSING and (
            field.default_factory is dataclasses.MISSING
        ):
            raise RecordError(f"key '{key}' is missing")
    return kind(**fields)


def _read_optional(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in kinds:
        return None
    return _read(next(kind for kind in kinds if kind is not type(None)), value, where)


def _read_plain(kind: Any, value: Any, where: str) -> Any:
    if kind is Any:
        return value
    if kind is float:
        if isinstance(value, str) and value in _NON_FINITE:
            return _NON_FINITE[value]
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        raise _wrong(where, value, "a number")
    if kind is int and isinstance(value, bool):
        raise _wrong(where, value, "a whole number")
    if not isinstance(value, kind):
        names = {int: "a whole number", str: "a string", bool: "true or false", dict: "an object"}
        raise _wrong(where, value, names.get(kind, kind.__name__))
    return value


def _wrong(where: str, value: Any, expected: str) -> RecordError:
    shown = repr(value)
    shown = shown if len(shown) <= 40 else shown[:37] + "..."
    return RecordError(f"key '{where}' is {shown}; {expected} is expected")
