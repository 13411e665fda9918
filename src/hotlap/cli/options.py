"""Options and checks that several commands share."""

from __future__ import annotations

import argparse
import errno
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from hotlap.errors import UsageError
from hotlap.records.codec import json_text, write_text
from hotlap.records.store import RunStore, default_runs_dir


class Parser(argparse.ArgumentParser):
    """argparse, with errors in hotlap's form: one sentence, exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with the command line."""
        raise UsageError(f"{message} (`{self.prog} --help` lists what there is)")


def add_runs_dir(parser: argparse.ArgumentParser) -> None:
    """Where Runs are kept."""
    parser.add_argument(
        "--runs-dir",
        type=Path,
        default=default_runs_dir(),
        metavar="DIR",
        help="where Runs are kept (default: .hotlap here, or $HOTLAP_RUNS_DIR)",
    )


def open_store(runs_dir: Path) -> RunStore:
    """The Runs of a folder; those whose training was killed are made first."""
    store = RunStore(runs_dir)
    for folder in store.unfinished():
        from hotlap.chronometer.headless import settle

        settle(folder)
    return store


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """What every command has that runs one of the user's to its end."""
    parser.add_argument(
        "--steps", type=positive, metavar="N", help="end the run after N measured steps"
    )
    parser.add_argument(
        "--warmup",
        type=not_negative,
        metavar="N",
        help="leave the first N steps out of the figures (default: a tenth, 1 to 10)",
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing of hotlap's own")
    add_json(parser)
    add_runs_dir(parser)


def parse_with_command(
    parser: argparse.ArgumentParser, argv: Sequence[str], example: str
) -> argparse.Namespace:
    """Parse options that are followed by a user's command, which is kept whole."""
    parser.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise UsageError(f"no command was given; write it last, as in `{example}`")
    arguments.command = tuple(command)
    return arguments


def add_json(parser: argparse.ArgumentParser) -> None:
    """The result as one JSON document."""
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write the result as one JSON document"
    )


def check_json_target(path: Path | None) -> None:
    """Find out before anything runs that a result could not be written."""
    check_target("--json", path)


def check_target(option: str, path: Path | None) -> None:
    """The same of any file that an option names."""
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{option} {path} is a folder; name a file")
    try:
        if _is_replaced(path):
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
                pass
        elif not os.access(path, os.W_OK):
            why = errno.EACCES if path.exists() else errno.ENOENT
            raise OSError(why, os.strerror(why))
    except OSError as error:
        raise UsageError(
            f"{option} {path} cannot be written ({error.strerror}); name a file in a folder that "
            "is there and yours"
        ) from None


def check_folder(option: str, path: Path) -> None:
    """The same of a folder, which is made; rights alone do not tell of a read-only disk."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path):
            pass
    except OSError as error:
        raise UsageError(
            f"{option} {path} cannot be written ({error.strerror}); name a folder of yours"
        ) from None


def _is_replaced(path: Path) -> bool:
    """Whether a result takes a file's place; links, pipes and devices are written into."""
    return not path.is_symlink() and (path.is_file() or not path.exists())


def write_result(path: Path | None, value: Any) -> None:
    """Write the document that --json asked for."""
    if path is not None:
        write_document("--json", path, json_text(value))


def write_document(option: str, path: Path, text: str) -> None:
    """Whole or not at all; into what cannot be replaced, as it is."""
    try:
        if _is_replaced(path):
            write_text(path, text)
        else:
            _write_into(path, text)
    except OSError as error:
        raise UsageError(f"{option} {path} cannot be written: {error.strerror}") from error


def _write_into(path: Path, text: str) -> None:
    """Keep what is there; /dev/stdout may be a file that our own lines go to as well."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        if os.path.samestat(path.stat(), os.fstat(number)):
            stream.write(text)
            stream.flush()
            return
    path.write_text(text, encoding="utf-8")


def above_zero(text: str) -> float:
    """A number above zero, and none that is a slip of the keyboard."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e5:
        raise argparse.ArgumentTypeError(f"'{text}' was found; a number above zero is expected")
    return value


def positive(text: str) -> int:
    """A whole number above zero."""
    return _whole(text, 1, "a whole number above zero")


def not_negative(text: str) -> int:
    """A whole number, zero included."""
    return _whole(text, 0, "a whole number, zero or more")


def _whole(text: str, least: int, expected: str) -> int:
    if text.isascii() and text.isdigit() and int(text) >= least:
        return int(text)
    raise argparse.ArgumentTypeError(f"'{text}' was found; {expected} is expected")
