"""Edits of one file, put together into its new text.

Every edit becomes changes of the text at places of the old one, so that no edit moves the place of
another; blocks come last, for they indent what the others have made.
"""

from __future__ import annotations

import ast
import functools
import re
import tokenize
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from hotlap.levers.common.calls import argument_changes, call_changes, model_call
from hotlap.levers.common.source import (
    DEFINITIONS,
    Change,
    DoesNotFit,
    Source,
    first_line,
    inside_scope,
    moved,
    names_bound,
    parse,
    replaced,
    root_name,
)

if TYPE_CHECKING:
    from hotlap.levers.common.edits import Edit, Kind

TORCH = re.compile(r"\btorch\.")


def with_all_that_fit(source: Source, edits: Sequence[Edit]) -> str:
    """The text with these edits; one that does not fit with those before it is left out."""
    at_once = rewritten(source, edits)
    if at_once is not None:
        return at_once
    text = source.text
    kept: list[Edit] = []
    for edit in edits:
        new = rewritten(source, [*kept, edit])
        if new is not None:
            text = new
            kept.append(edit)
    return text


def rewritten(source: Source, edits: Sequence[Edit]) -> str | None:
    """The text with these edits, None where one does not fit or the result would be no Python."""
    try:
        text = _rewrite(source, edits)
        parse(text)
    except (SyntaxError, ValueError, tokenize.TokenError):
        return None
    return text


def _rewrite(source: Source, edits: Sequence[Edit]) -> str:
    """First what has a place of its own, then blocks: their lines are found again after that."""
    changes = _changes(source, edits)
    text, made = replaced(source.text, changes), [changes]
    for (start, end), heads in _heads(source, edits).items():
        now = Source(text)
        start, end = (functools.reduce(moved, made, offset) for offset in (start, end))
        siblings = now.siblings(now.statements_at(now.line_of(start)))
        wrapped = [one for one in siblings if start <= now.span(one)[0] < end]
        made.append(_indented(now, wrapped, heads))
        text = replaced(text, made[-1])
    return text


def _changes(source: Source, edits: Sequence[Edit]) -> list[Change]:
    """All changes but those of blocks. Of two at one place, the first listed goes first."""
    by_kind: dict[Kind, list[tuple[int, Edit]]] = {}
    for edit in edits:
        if edit.site is not None:
            by_kind.setdefault(edit.kind, []).append((edit.site.line, edit))
    changes = [_before(source, line, edit) for line, edit in by_kind.get("before", ())]
    changes += argument_changes(source, by_kind.get("arguments", ()))
    changes += call_changes(source, by_kind.get("call", ()))
    new = [*(one.new for one in changes), *(edit.text for _, edit in by_kind.get("block", ()))]
    return _import_changes(source, by_kind.get("import", ()), new) + changes


def _before(source: Source, line: int, edit: Edit) -> Change:
    path = source.insertion(line)
    if not path:
        raise DoesNotFit
    start = source.line_start(first_line(path[-1]))
    indent = source.before_on_line(source.span(path[-1])[0])
    text = named(source, edit, path)
    return Change(start, start, "".join(_new_lines(source, text, indent)))


def _new_lines(source: Source, text: str, indent: str) -> list[str]:
    """Lines of new code as the file writes its own."""
    lines: list[str] = []
    for line in text.strip("\n").splitlines():
        n_levels = (len(line) - len(line.lstrip(" "))) // 4
        new = indent + source.indent * n_levels + line[4 * n_levels :] if line.strip() else ""
        lines.append(new + source.newline)
    return lines


def named(source: Source, edit: Edit, path: Sequence[ast.stmt]) -> str:
    """The text of an edit with the model's name, if that means the model where the text goes."""
    if "{model}" not in edit.text:
        return edit.text
    if edit.site is None or edit.other_site is None or edit.other_site.file != edit.site.file:
        raise DoesNotFit
    function = model_call(source, edit.other_site.line).func
    root = root_name(function)
    called_in = source.statements_at(edit.other_site.line)
    if not source.binds(root, path) or (root == "self" and _class(called_in) is not _class(path)):
        raise DoesNotFit
    # A function that makes an optimizer for each of several models knows one of them at a time.
    if edit.is_of_several and not source.is_local(root, path):
        raise DoesNotFit
    assigns = re.search(r"^\s*\{model\} *=[^=]", edit.text, re.MULTILINE)
    if assigns and isinstance(function, ast.Name) and not source.is_local(root, path):
        raise DoesNotFit
    return edit.text.replace("{model}", source.segment(function))


def _class(path: Sequence[ast.stmt]) -> ast.stmt | None:
    return next((node for node in reversed(path[:-1]) if isinstance(node, ast.ClassDef)), None)


def _import_changes(
    source: Source, edits: Iterable[tuple[int, Edit]], other_new: Sequence[str]
) -> list[Change]:
    """New lines behind the imports, with `import torch` where new code needs it."""
    by_line: dict[int, list[str]] = {}
    for line, edit in edits:
        by_line.setdefault(import_line(source, line), []).append(edit.text.strip("\n"))
    last = import_line(source, None)
    if any(TORCH.search(new) for new in other_new) and not _has_torch(source, last):
        by_line.setdefault(last, [])
    changes: list[Change] = []
    for line, texts in by_line.items():
        needs = any(TORCH.search(new) for new in (*texts, *(other_new if line == last else ())))
        first = ["import torch"] if needs and not _has_torch(source, line) else []
        changes.append(_behind(source, line, [*first, *dict.fromkeys(texts)]))
    return changes


def _behind(source: Source, line: int, texts: Sequence[str]) -> Change:
    """Imports first, apart from what is none by an empty line where the file has one."""
    imports = [text for text in texts if _is_all_imports(text)]
    others = [text for text in texts if text not in imports]
    is_apart = not "".join(source.lines[line : line + 1]).strip()
    lines = _new_lines(source, "\n".join(imports), "") if imports else []
    if others:
        lines += [source.newline] if is_apart and line else []
        lines += _new_lines(source, "\n".join(others), "")
    start = source.line_start(line + 1)
    is_cut = line and not source.lines[line - 1].endswith(("\n", "\r"))
    return Change(start, start, (source.newline if is_cut else "") + "".join(lines))


def import_line(source: Source, line: int | None) -> int:
    """The last line of the imports that are made before the code on a line runs."""
    path = source.statements_at(line) if line is not None else []
    is_in_function = any(isinstance(node, DEFINITIONS) for node in path)
    found = _imports(source, first_line(path[0]) if path else None)
    if not found and is_in_function:
        found = _imports(source, None)
    if found:
        return found[-1].end_lineno or 0
    body = source.tree.body
    if body and ast.get_docstring(source.tree) is not None:
        return body[0].end_lineno or 0
    return first_line(body[0]) - 1 if body else 0


def _imports(source: Source, limit: int | None) -> list[ast.stmt]:
    """Top-level imports before a line, with those in a `try` or an `if`."""
    before = [s for s in source.tree.body if limit is None or (s.end_lineno or 0) < limit]
    return [s for s in before if _is_import(s)]


def _is_import(node: ast.stmt) -> bool:
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test):
        return False
    inside = inside_scope(node) if isinstance(node, (ast.If, ast.Try)) else ()
    return any(isinstance(one, (ast.Import, ast.ImportFrom)) for one in inside)


def _has_torch(source: Source, line: int) -> bool:
    nodes = (n for s in _imports(source, line + 1) for n in (s, *inside_scope(s)))
    return any("torch" in names_bound(n) for n in nodes)


def _is_all_imports(text: str) -> bool:
    return all(isinstance(one, (ast.Import, ast.ImportFrom)) for one in parse(text).body)


def _heads(source: Source, edits: Sequence[Edit]) -> dict[tuple[int, int], list[str]]:
    """The `with` lines of each block, by where the block begins and where what follows does."""
    found: dict[tuple[int, int], list[str]] = {}
    for edit in edits:
        if edit.kind == "block":
            behind, wrapped = block(source, edit)
            place = source.span(wrapped[0])[0], source.span(behind)[0]
            found.setdefault(place, []).append(edit.text)
    return found


def block(source: Source, edit: Edit) -> tuple[ast.stmt, list[ast.stmt]]:
    """The statement behind a block, and those of the block."""
    if edit.site is None or edit.other_site is None or edit.other_site.file != edit.site.file:
        raise DoesNotFit
    first, last = (source.statements_at(one.line) for one in (edit.site, edit.other_site))
    if not first or not last or first[:-1] != last[:-1]:
        raise DoesNotFit
    siblings = source.siblings(first)
    if last[-1] not in siblings or _shares_line(source, first[-1], siblings):
        raise DoesNotFit
    # What stands behind the backward on its line stays there with it.
    if _shares_line(source, last[-1], siblings) and not _is_first_backward(source, last[-1]):
        raise DoesNotFit
    wrapped = siblings[siblings.index(first[-1]) : siblings.index(last[-1])]
    if not wrapped or is_trained_behind(source, edit):
        raise DoesNotFit
    if not all(one.file == edit.site.file and _holds(wrapped, one.line) for one in edit.also):
        raise DoesNotFit
    return last[-1], wrapped


def _holds(statements: Sequence[ast.stmt], line: int) -> bool:
    return any(first_line(one) <= line <= (one.end_lineno or 0) for one in statements)


def is_trained_behind(source: Source, edit: Edit) -> bool:
    """Whether a model of a block is called again behind it, with a backward of its own.

    A discriminator is: for real images, for those of the generator, and for the generator's sake.
    """
    if edit.site is None or edit.other_site is None or edit.other_site.file != edit.site.file:
        return False
    last = source.statements_at(edit.other_site.line)
    if not last:
        return False
    siblings = source.siblings(last)
    behind = siblings[siblings.index(last[-1]) + 1 :]
    while behind and not _has_backward(behind[-1]):
        behind.pop()
    lines = [one.line for one in (edit.site, *edit.also) if one.file == edit.site.file]
    models = {source.segment(call.func) for line in lines if (call := source.model_call(line))}
    calls = (one for node in behind for one in ast.walk(node) if isinstance(one, ast.Call))
    return any(source.segment(call.func) in models for call in calls)


def _has_backward(node: ast.stmt) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr == "backward" for one in ast.walk(node))


def _shares_line(source: Source, node: ast.stmt, siblings: Sequence[ast.stmt]) -> bool:
    same = [one for one in siblings if one is not node and first_line(one) == first_line(node)]
    return not _is_first_on_line(source, node) or bool(same)


def _is_first_on_line(source: Source, node: ast.stmt) -> bool:
    return not source.before_on_line(source.span(node)[0]).strip()


def _is_first_backward(source: Source, node: ast.stmt) -> bool:
    return _is_first_on_line(source, node) and _has_backward(node)


def _indented(source: Source, wrapped: Sequence[ast.stmt], heads: Sequence[str]) -> list[Change]:
    """Lines under the heads, one level deeper for each."""
    first, last = first_line(wrapped[0]), wrapped[-1].end_lineno or 0
    before = source.before_on_line(source.span(wrapped[0])[0])
    step = "\t" if "\t" in before else source.indent
    start = source.line_start(first)
    changes = [
        Change(start, start, before + step * level + head.strip() + source.newline)
        for level, head in enumerate(heads)
    ]
    for line in range(first, last + 1):
        if source.lines[line - 1].strip() and line not in source.lines_inside_strings:
            start = source.line_start(line)
            changes.append(Change(start, start, step * len(heads)))
    return changes
