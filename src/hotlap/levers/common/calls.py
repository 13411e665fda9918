"""New arguments of a call, and a call made in another way, as changes of the text."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hotlap.levers.common.source import (
    Argument,
    Arguments,
    Change,
    DoesNotFit,
    Source,
    parse,
)

if TYPE_CHECKING:
    from hotlap.levers.common.edits import Edit

KEEPS_CALL = re.compile(r"\{function\}\(([^{}]*)\{first\}([^{}]*)\{rest\}\)")
POSITIONS = {
    "DataLoader": (
        *("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers"),
        *("collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn"),
    ),
    "DistributedDataParallel": (
        *("module", "device_ids", "output_device", "dim", "broadcast_buffers"),
    ),
    "set_detect_anomaly": ("mode", "check_nan"),
}
"""Arguments that can be given without their names, where a lever may set them."""
OF_AN_OPTIMIZER = ("params", "lr")
PRIMARIES = (
    *(ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Dict, ast.List, ast.Set),
    *(ast.ListComp, ast.DictComp, ast.SetComp, ast.JoinedStr),
)
"""Expressions that bind as tightly as a name."""


def argument_changes(source: Source, edits: Iterable[tuple[int, Edit]]) -> list[Change]:
    """Edits of one call are put together: they have to agree on the value of a keyword."""
    by_call: dict[ast.Call, dict[str, str]] = {}
    for line, edit in edits:
        calls = source.calls_of(line, edit.text)
        if not calls:
            raise DoesNotFit
        for call in calls:
            new = by_call.setdefault(call, {})
            if any(new.get(name, value) != value for name, value in edit.arguments):
                raise DoesNotFit  # a helper that is called with one value, then with another
            new.update(edit.arguments)
    return [one for call, new in by_call.items() for one in _new_arguments(source, call, new)]


def _new_arguments(source: Source, call: ast.Call, new: dict[str, str]) -> list[Change]:
    arguments = source.arguments(call)
    if any(isinstance(one, ast.GeneratorExp) for one in call.args):
        raise DoesNotFit  # its parentheses may be the call's own
    changes: list[Change] = []
    missing: dict[str, str] = {}
    for name, value in new.items():
        old = _value_span(source, call, arguments, name)
        if old is None:
            missing[name] = value
        else:
            changes.append(Change(*old, value))
    return changes + (_added(source, call, arguments, missing) if missing else [])


def _value_span(
    source: Source, call: ast.Call, arguments: Arguments, name: str
) -> tuple[int, int] | None:
    """Where the value of an argument stands that is given already, by name or by position."""
    for one in arguments.all:
        if [text for _, text in one.tokens[:2]] == [name, "="]:
            return one.tokens[2][0], one.end
    positions = POSITIONS.get(source.real_name(call), OF_AN_OPTIMIZER)
    index = positions.index(name) if name in positions else len(call.args)
    if any(isinstance(one, ast.Starred) for one in call.args):
        raise DoesNotFit  # nobody knows how many they are
    if index >= len(call.args):
        return None
    return arguments.all[index].start, arguments.all[index].end


def _added(
    source: Source, call: ast.Call, arguments: Arguments, new: dict[str, str]
) -> list[Change]:
    """Keywords at the end of a call, in the way it is written."""
    words = [f"{name}={value}" for name, value in new.items()]
    if not arguments.all:
        return [Change(arguments.opening, arguments.opening, ", ".join(words))]
    if any(keyword.arg is None for keyword in call.keywords):
        return [_into_mapping(source, arguments, new)]
    last = arguments.all[-1]
    indent = source.before_on_line(last.start)
    is_on_own_line = not indent.strip()
    separator = f",{source.newline}{indent}" if is_on_own_line else ", "
    if arguments.trailing_comma is None:
        end = _end_of_words(source, last.end) if is_on_own_line else last.end
        comma = Change(last.end, last.end, ",")
        return [comma, Change(end, end, separator[1:] + separator.join(words))]
    end = arguments.trailing_comma
    end = _end_of_words(source, end) if is_on_own_line else end
    return [Change(end, end, separator[1:] + separator.join(words) + ",")]


def _end_of_words(source: Source, offset: int) -> int:
    """The end of the line where only a comment follows, else the offset itself."""
    end = source.line_end(offset)
    rest = source.text[offset:end].strip()
    return end if not rest or rest.startswith("#") else offset


def _into_mapping(source: Source, arguments: Arguments, new: dict[str, str]) -> Change:
    """`**options` may hold the keyword already: `**{**options, "num_workers": 2}` always works."""
    last = [one for one in arguments.all if one.tokens[0][1] == "**"][-1]
    old = source.text[last.tokens[1][0] : last.end]
    old = old if _is_primary(old) else f"({old})"
    items = ", ".join(f'"{name}": {value}' for name, value in new.items())
    return Change(last.start, last.end, f"**{{**{old}, {items}}}")


def model_call(source: Source, line: int) -> ast.Call:
    """The call of the model on a line; it has to be there."""
    call = source.model_call(line)
    if call is None:
        raise DoesNotFit
    return call


def call_meant(source: Source, line: int, edit: Edit) -> ast.Call:
    """The call on a line that an edit is about: of what it names, or of the model."""
    if not edit.called:
        return model_call(source, line)
    calls = source.calls_of(line, edit.called)
    if len(calls) != 1:
        raise DoesNotFit
    return calls[0]


def call_changes(source: Source, edits: Iterable[tuple[int, Edit]]) -> list[Change]:
    """Edits of one call are put together."""
    by_call: dict[ast.Call, list[str]] = {}
    for line, edit in edits:
        by_call.setdefault(call_meant(source, line, edit), []).append(edit.text)
    return [_call_change(source, call, templates) for call, templates in by_call.items()]


def _call_change(source: Source, call: ast.Call, templates: Sequence[str]) -> Change:
    """Where only the first argument changes, the rest of the call stays as it is written."""
    if all(KEEPS_CALL.fullmatch(template) for template in templates):
        first = _first(source, call)
        return Change(first.start, first.end, _new_first(source, call, templates))
    return Change(*source.span(call), new_call(source, call, templates))


def new_call(source: Source, call: ast.Call, templates: Sequence[str]) -> str:
    """Changes of the first argument inside; around them one other, for a second has no place."""
    others = [one for one in templates if not KEEPS_CALL.fullmatch(one)]
    template = others[0] if others else "{function}({first}{rest})"
    if len(others) > 1:
        raise DoesNotFit
    arguments = source.arguments(call).all
    function, first = source.segment(call.func), ""
    start = source.arguments(call).opening
    if "{first}" in template:
        keeping = [one for one in templates if one not in others]
        first, start = _new_first(source, call, keeping), _first(source, call).end
        first = _in_parentheses(first, template.partition("{first}")[2])
    rest = source.text[start : arguments[-1].end] if arguments else ""
    rest = rest if "{first}" in template or not rest else f", {rest}"
    return filled(template, function=function, first=first, rest=rest)


def _first(source: Source, call: ast.Call) -> Argument:
    if not call.args or isinstance(call.args[0], (ast.Starred, ast.GeneratorExp)):
        raise DoesNotFit
    return source.arguments(call).all[0]


def _new_first(source: Source, call: ast.Call, templates: Iterable[str]) -> str:
    argument = _first(source, call)
    text = source.text[argument.start : argument.end]
    for template in templates:
        match = KEEPS_CALL.fullmatch(template)
        before, after = match.groups() if match else ("", "")
        text = before + _in_parentheses(text, after) + after
    return text


def _in_parentheses(text: str, after: str) -> str:
    """An expression of several pieces needs them where something is called on it."""
    return text if after[:1] in ("", ",", ")", "{") or _is_primary(text) else f"({text})"


def _is_primary(text: str) -> bool:
    node = parse(f"({text})").body[0]
    assert isinstance(node, ast.Expr)
    is_parenthesised = node.value.col_offset > 1
    return is_parenthesised or isinstance(node.value, PRIMARIES)


def filled(template: str, **parts: str) -> str:
    """In one pass: what is put in may have braces of its own."""
    return re.sub(r"\{(function|first|rest)\}", lambda match: parts[match[1]], template)
