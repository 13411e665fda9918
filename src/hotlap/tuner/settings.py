"""`hotlap.toml`: the levers that a climb kept, in a table `[levers]` of name = value.

`command` says which command was tuned; files by hand, and those of older versions, have none.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hotlap.errors import UsageError
from hotlap.levers import check_names
from hotlap.levers.common.lever import Lever
from hotlap.levers.common.workload import Workload

NAME = "hotlap.toml"
OFF = ("off", "false")
"""Values that leave a lever out."""


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """What a settings file holds."""

    levers: dict[str, str]
    """As text."""
    command: tuple[str, ...] = ()
    """The one that was tuned; empty where the file does not say."""


def read_settings(path: Path) -> SettingsFile:
    """A settings file, as it is written."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib  # the same library, before Python had it
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"{path} does not exist; `hotlap tune COMMAND` writes one, or name levers with --levers"
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    levers = document.get("levers")
    if not isinstance(levers, dict):
        raise UsageError(f"{path} has no table [levers]")
    for name, value in levers.items():
        if isinstance(value, (dict, list)):
            raise UsageError(f"{path}: the lever {name} is {value!r}; one value is expected")
    command = document.get("command", [])
    if not isinstance(command, list) or not all(isinstance(word, str) for word in command):
        raise UsageError(f"{path}: command is {command!r}; a list of its words is expected")
    return SettingsFile({name: _text(value) for name, value in levers.items()}, tuple(command))


def other_script(tuned: Sequence[str], command: Sequence[str]) -> tuple[str, str] | None:
    """The scripts of two commands, where they are not the same one.

    A name may be given from another folder: paths are the same as far as both are written.
    """
    scripts = script_of(tuned), script_of(command)
    parts = [[part for part in Path(one).parts if part != ".."] for one in scripts]
    n = min(map(len, parts))
    is_same = bool(n) and parts[0][-n:] == parts[1][-n:]
    return None if is_same else scripts


def script_of(command: Sequence[str]) -> str:
    """What a command runs: its first Python file, or its module, or the program itself."""
    file = next((word for word in command if word.endswith(".py")), None)
    modules = [after for word, after in pairwise(command) if word == "-m"]
    return file or next(iter(modules), command[0])


def _text(value: object) -> str:
    return ("on" if value else "off") if isinstance(value, bool) else str(value)


def values_of(
    asked: Mapping[str, str], levers: Sequence[Lever], workload: Workload, source: str
) -> dict[str, str]:
    """A value for each lever that is asked for and not off; `source` is who asks, for a refusal.

    No value, and 'on' where a lever has no such value, is the first that is worth trying.
    """
    check_names(asked, levers, source)
    by_name = {lever.name: lever for lever in levers}
    return {
        name: _value_of(by_name[name], value, workload, source)
        for name, value in asked.items()
        if value not in OFF
    }


def _value_of(lever: Lever, asked: str, workload: Workload, source: str) -> str:
    accepts, expected = lever.takes.accepts, f"{lever.takes.expected} is expected"
    if not asked or (asked == "on" and not accepts(asked)):
        worth_trying = lever.values(workload)
        if not worth_trying:
            raise UsageError(f"{source}: the lever {lever.name} has no value; {expected}")
        return worth_trying[0]
    if not accepts(asked):
        raise UsageError(f"{source}: the lever {lever.name} is '{asked}'; {expected}, or 'off'")
    return asked


def keep_older(path: Path) -> Path | None:
    """Copy a file that is about to be replaced, unless it holds no lever; where the copy is.

    One that is no settings file, or a damaged one, is somebody's as well.
    """
    if not path.is_file():
        return None
    try:
        if not read_settings(path).levers:
            return None
    except UsageError:
        pass
    older = path.with_name(f"{path.name}.old")
    shutil.copy2(path, older)
    return older


def write_settings(path: Path, settings: SettingsFile, comment: str) -> None:
    """Write the file so that a reader sees the old one or the new one."""
    words = ", ".join(map(_quoted, settings.command))
    lines = [f"# {comment}", "", f"command = [{words}]", "", "[levers]"]
    lines += [f"{_key(name)} = {_quoted(value)}" for name, value in settings.levers.items()]
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as stream:
            stream.write("\n".join(lines) + "\n")
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _key(name: str) -> str:
    """A key of TOML: bare where it can be; a user's lever may have any name."""
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(value: str) -> str:
    """A basic string of TOML."""
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda m: f"\\u{ord(m[0]):04x}", escaped) + '"'
