"""The change of a lever as an edit of the user's own source.

An Edit is data: which call or statement of which line, and what becomes of it. It is made in the
text of the file, which keeps its comments and its formatting, and only where it fits and leaves a
file that parses; everywhere else it is told in words.
"""

from __future__ import annotations

import ast
import difflib
import io
import os
import tokenize
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hotlap.levers.common.calls import POSITIONS, call_meant, filled, new_call
from hotlap.levers.common.rewrite import (
    block,
    import_line,
    is_trained_behind,
    named,
    rewritten,
    with_all_that_fit,
)
from hotlap.levers.common.source import Source, first_line, parse, split_lines
from hotlap.levers.common.workload import Site

Kind = Literal["arguments", "before", "import", "call", "block", "told", "advised", "environment"]
IN_WORDS = ("told", "advised", "environment")
"""Kinds that are not made in the text of a file."""
LOSS_IN_WORDS = "loss; backward stays outside"
Read = Callable[[str], str]
"""Gives the text of a file."""


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of the source, or of the environment it is started in."""

    kind: Kind
    site: Site | None
    text: str
    """New code; what is told to a user as well where the line is not known."""
    arguments: tuple[tuple[str, str], ...] = ()
    """For 'arguments': keywords and their new source text. For 'environment': the variables."""
    other_site: Site | None = None
    """For 'before': the line that calls the model, whose name stands for {model}. For 'block': the
    first line behind the block."""
    called: str = ""
    """For 'call': the name of what is called; the model where it is empty."""
    also: tuple[Site, ...] = ()
    """For 'block': lines of other calls that have to be in it."""
    is_of_several: bool = False
    """For 'before': whether other models are there, which a function may be called for as well."""


def change_arguments(site: Site | None, call: str, **arguments: str) -> Edit:
    """Give the call on this line other keyword arguments: `DataLoader(…, num_workers=4)`."""
    return Edit("arguments", site, call, tuple(arguments.items()))


def insert_before(
    site: Site | None, text: str, model: Site | None = None, is_of_several: bool = False
) -> Edit:
    """Put statements before the one on this line; {model} in them is the model's name."""
    return Edit("before", site, text, other_site=model, is_of_several=is_of_several)


def insert_after_import(site: Site | None, text: str) -> Edit:
    """Put statements behind the imports of the file that this line is in."""
    return Edit("import", site, text)


def wrap_call(site: Site | None, text: str, called: str = "") -> Edit:
    """Replace the model's call on this line, or that of what is named.

    {function}, {first} (argument) and {rest} come from it.
    """
    return Edit("call", site, text, called=called)


def wrap_block(start: Site | None, end: Site | None, text: str, also: Iterable[Site] = ()) -> Edit:
    """Indent the statements from one line up to another under a `with`."""
    return Edit("block", start, text, other_site=end, also=tuple(also))


def tell(site: Site | None, text: str) -> Edit:
    """What a person has to do at this line: code that depends on the script's own."""
    return Edit("told", site, text)


def advise(site: Site | None, text: str) -> Edit:
    """As `tell`, for what makes the other edits of a lever worth more: they stand without it."""
    return Edit("advised", site, text)


def set_environment(**variables: str) -> Edit:
    """Start the command with these variables."""
    return Edit("environment", None, "", tuple(variables.items()))


def read_source(file: str) -> str:
    """The text of a Python file in the encoding that it names, its line ends as they are."""
    content = Path(file).read_bytes()
    encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    return content.decode(encoding)


def apply_edits(edits: Iterable[Edit], read: Read = read_source) -> dict[str, str]:
    """The new source of every file that is changed; edits that do not fit are left out."""
    by_file: dict[str, list[Edit]] = {}
    for edit in dict.fromkeys(edits):
        if edit.site is not None and edit.kind not in IN_WORDS:
            by_file.setdefault(edit.site.file, []).append(edit)
    sources = {file: _source(file, read) for file in by_file}
    return {
        file: new
        for file, source in sources.items()
        if source is not None and (new := with_all_that_fit(source, by_file[file])) != source.text
    }


def can_apply(edit: Edit, read: Read = read_source) -> bool:
    """Whether `apply_edits` can make this change: one of the environment is made elsewhere."""
    if edit.site is None or edit.kind in IN_WORDS:
        return False
    source = _source(edit.site.file, read)
    return source is not None and rewritten(source, [edit]) is not None


def unified_diff(edits: Iterable[Edit], read: Read = read_source) -> str:
    """All changes of the source as `git apply` and `patch -p1` take them."""
    parts: list[str] = []
    for file, new in sorted(apply_edits(edits, read).items()):
        old, name = read(file), _relative(file).lstrip(os.sep)
        lines = difflib.unified_diff(split_lines(old), split_lines(new), f"a/{name}", f"b/{name}")
        no_newline = "\n\\ No newline at end of file\n"
        parts += [line if line.endswith(("\n", "\r")) else line + no_newline for line in lines]
    return "".join(parts)


def describe(edit: Edit, read: Read = read_source) -> str:
    """The change in one line, for a person."""
    if edit.kind == "environment":
        return " ".join(f"{name}={value}" for name, value in edit.arguments) + " in the environment"
    source = _source(edit.site.file, read) if edit.site else None
    if edit.site is None or source is None or not can_apply(edit, read):
        where = f"{_place(edit.site)}  " if edit.site else ""
        return where + _in_general(edit, source)
    return f"{_relative(edit.site.file)}:{_in_particular(source, edit, edit.site.line)}"


def _in_general(edit: Edit, source: Source | None) -> str:
    """An edit whose place is not known: what to write, and where."""
    text = _one_line(edit.text)
    if edit.kind in ("told", "advised"):
        return text  # it says itself where it goes
    if edit.kind == "arguments":
        is_made = edit.text[0].isupper()
        where = f"the {edit.text} is made" if is_made else "it is called"
        return f"{_short_call(edit)} where {where}"
    if edit.kind == "before":
        what = "model" if "{model}" in text else "training"
        begins = "is ready" if what == "model" else "is about to begin"
        return f"{text.replace('{model}', 'model')} where the {what} {begins}"
    if edit.kind == "import":
        return f"{text} where torch is imported"
    if edit.kind == "call":
        if edit.called:
            new = filled(text, function=edit.called, first="model", rest=", ...")
            return f"{new} where the {edit.called} is made"
        new = filled(text, function="model", first="inputs", rest=", ...")
        return f"{new} where the model is called"
    return f"{text} {_block_in_general(edit, source)}"


def _block_in_general(edit: Edit, source: Source | None) -> str:
    """Where a block begins and ends, as far as that is known."""
    first, last = edit.site, edit.other_site
    if first is None or last is None:
        return "from where the model is called to where the backward is"
    if edit.also:
        others = " and in ".join(_as_seen_from(first, one) for one in edit.also)
        return f"around each call of a model, here and in {others}, up to its {LOSS_IN_WORDS}"
    is_before = first.file == last.file and last.line < first.line
    if is_before or (source is not None and is_trained_behind(source, edit)):
        return f"around each call of the model, here and elsewhere, up to its {LOSS_IN_WORDS}"
    if first == last:
        return "around what this line computes before its backward"
    behind = _as_seen_from(first, last)
    return f"from this line up to the backward in {behind}, which stays outside"


def _as_seen_from(first: Site, other: Site) -> str:
    return f"line {other.line}" if first.file == other.file else _place(other)


def _in_particular(source: Source, edit: Edit, line: int) -> str:
    """An edit that can be made: the line, and what becomes of it."""
    if edit.kind == "arguments":
        return f"{line}  {_short_call(edit)}"
    if edit.kind == "before":
        path = source.insertion(line)
        text = _one_line(named(source, edit, path))
        return f"{first_line(path[-1])}  {text} before this line"
    if edit.kind == "import":
        return f"{max(1, import_line(source, line))}  {_one_line(edit.text)} behind this line"
    if edit.kind == "call":
        call = call_meant(source, line, edit)
        return f"{line}  {ast.unparse(parse(new_call(source, call, [edit.text])))}"
    _, wrapped = block(source, edit)
    first, last = first_line(wrapped[0]), wrapped[-1].end_lineno or line
    lines = "this line" if first == last else f"the lines up to {last}"
    return f"{first}  {_one_line(edit.text)} around {lines}"


def _short_call(edit: Edit) -> str:
    names, values = zip(*edit.arguments, strict=True)
    if POSITIONS.get(edit.text, ())[: len(names)] == names:
        return f"{edit.text}({', '.join(values)})"
    return f"{edit.text}(..., {', '.join(f'{name}={value}' for name, value in edit.arguments)})"


def _one_line(text: str) -> str:
    """Statements on one line, for reading; the body of a function behind its head."""
    joined = "; ".join(line.strip() for line in text.splitlines() if line.strip())
    return joined.replace(":; ", ": ")


def _place(site: Site) -> str:
    return f"{_relative(site.file)}:{site.line}"


def _relative(file: str) -> str:
    """As seen from the working folder, for a file in it."""
    path = os.path.relpath(file)
    return file if path.startswith(os.pardir) else path


def _source(file: str, read: Read) -> Source | None:
    try:
        return Source(read(file))
    except (OSError, SyntaxError, ValueError):
        return None
