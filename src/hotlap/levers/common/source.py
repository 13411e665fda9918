"""A user's source file: its text with the places of its statements and calls.

The syntax tree says where things stand; every change is made in the text itself, so that comments
and formatting stay as the user wrote them.
"""

from __future__ import annotations

import ast
import bisect
import builtins
import functools
import io
import re
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

LIBRARIES = frozenset({"torch", "F", "nn", "np", "numpy", "math", "optim"})
"""What a call that begins with these names calls is no model."""
METHODS = frozenset(
    [
        "to",
        "cuda",
        "cpu",
        "float",
        "half",
        "bfloat16",
        "double",
        "long",
        "int",
        "bool",
        "type",
        "type_as",
        "view",
        "view_as",
        "reshape",
        "reshape_as",
        "flatten",
        "squeeze",
        "unsqueeze",
        "permute",
        "transpose",
        "contiguous",
        "detach",
        "clone",
        "item",
        "size",
        "dim",
        "numel",
        "mean",
        "sum",
        "max",
        "min",
        "argmax",
        "softmax",
        "pow",
        "sqrt",
        "exp",
        "expand",
        "repeat",
        "chunk",
        "split",
        "pin_memory",
        "backward",
        "step",
        "zero_grad",
        "requires_grad_",
        "train",
        "eval",
        "parameters",
        "state_dict",
        "append",
        "extend",
        "items",
        "keys",
        "values",
        "get",
        "format",
        "join",
        "update",
        "log",
        "print",
        "scale",
        "next",
    ]
)
"""Methods of tensors, optimizers and containers that stand beside a model's call."""
LOSS = re.compile(r"loss|crit|objective", re.IGNORECASE)
MODEL = re.compile(r"model|net|module", re.IGNORECASE)


class DoesNotFit(ValueError):
    """What a change is about is not at its place."""


@dataclass(frozen=True, slots=True)
class Change:
    """The text from one offset to another becomes another text."""

    start: int
    end: int
    new: str


@dataclass(slots=True)
class Argument:
    """One argument of a call, with the parentheses around it."""

    start: int
    end: int
    tokens: list[tuple[int, str]] = field(default_factory=list)
    """Offset and text of each."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """What stands between the parentheses of a call."""

    opening: int
    """Offset behind the opening parenthesis."""
    all: tuple[Argument, ...]
    trailing_comma: int | None
    """Offset behind it."""


@dataclass(slots=True)
class _Bracket:
    opening: int
    arguments: list[Argument] = field(default_factory=list)
    is_open: bool = False
    """Whether the next token belongs to the last argument."""
    comma: int = 0
    n_lambdas: int = 0
    """Whose parameters are being read: their commas part no arguments."""

    def add(self, start: int, end: int, text: str) -> None:
        if not self.is_open:
            self.arguments.append(Argument(start, end))
            self.is_open = True
        self.arguments[-1].end = end
        self.arguments[-1].tokens.append((start, text))
        if text == "lambda":
            self.n_lambdas += 1
        elif text == ":" and self.n_lambdas:
            self.n_lambdas -= 1


class Source:
    """A file's text, parsed. Raises SyntaxError or ValueError where it is no Python."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lines = split_lines(text)
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line))
        self.tree = parse(text)

    # Places -----------------------------------------------------------------------------------

    def line_start(self, line: int) -> int:
        """Offset of the first character of a line, counted from 1."""
        return self._starts[line - 1]

    def line_of(self, offset: int) -> int:
        """The line that an offset is in."""
        return bisect.bisect_right(self._starts, offset, hi=len(self.lines))

    def line_end(self, offset: int) -> int:
        """Offset of the end of the line that this offset is in, before its newline."""
        line = self.line_of(offset)
        return self.line_start(line) + len(self.lines[line - 1].rstrip("\r\n"))

    def offset(self, line: int, column_bytes: int) -> int:
        """The tree counts columns in bytes of UTF-8."""
        before = self.lines[line - 1].encode()[:column_bytes]
        return self.line_start(line) + len(before.decode(errors="ignore"))

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Where a node begins and ends; a definition begins with its decorators."""
        end = self.offset(node.end_lineno or node.lineno, node.end_col_offset or 0)
        if isinstance(node, DEFINITIONS) and node.decorator_list:
            first = first_line(node)
            return self.line_start(first) + len(indentation(self.lines[first - 1])), end
        return self.offset(node.lineno, node.col_offset), end

    def segment(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node."""
        start, end = self.span(node)
        return self.text[start:end]

    def before_on_line(self, offset: int) -> str:
        """What stands on the line before this offset."""
        return self.text[self.line_start(self.line_of(offset)) : offset]

    @functools.cached_property
    def newline(self) -> str:
        """How the lines of the file end."""
        first = self.lines[0] if self.lines else ""
        return first[len(first.rstrip("\r\n")) :] or "\n"

    @functools.cached_property
    def indent(self) -> str:
        """One level of indentation, as the file's first indented block has it."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.stmt):
                for block in blocks(node):
                    outer, inner = (
                        indentation(self.lines[first_line(one) - 1]) for one in (node, block[0])
                    )
                    if inner.startswith(outer) and len(inner) > len(outer):
                        return inner[len(outer) :]
        return "    "

    # Statements -------------------------------------------------------------------------------

    def statements_at(self, line: int) -> list[ast.stmt]:
        """The statement on a line, behind those that it is in; empty where there is none."""
        path: list[ast.stmt] = []
        level: Sequence[ast.stmt] = self.tree.body
        while level:
            found = [s for s in level if first_line(s) <= line <= (s.end_lineno or s.lineno)]
            if not found:
                break
            path.append(found[0])
            level = [inner for block in blocks(found[0]) for inner in block]
        # A line of a compound statement that is not its head is a comment, or an `else`.
        if path and level and line >= first_line(level[0]):
            return []
        return path

    def siblings(self, path: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The block of statements that the last one of a path is in."""
        around = [self.tree.body] if len(path) == 1 else blocks(path[-2])
        return next(block for block in around if path[-1] in block)

    def insertion(self, line: int) -> list[ast.stmt]:
        """The path to the statement before which a new line can stand."""
        path = self.statements_at(line)
        while path:
            start, _ = self.span(path[-1])
            is_first = not self.before_on_line(start).strip()
            if is_first and not self.text.startswith("elif", start):
                return path
            path.pop()
            if path and isinstance(path[-1], DEFINITIONS):
                return []  # before it would be before another time, too
        return []

    @functools.cached_property
    def lines_inside_strings(self) -> frozenset[int]:
        """Lines that begin inside a string, where an indent would change the string."""
        found: set[int] = set()
        started: list[int] = []
        plain = "".join(line.rstrip("\r\n") + "\n" for line in self.lines)
        for token in tokenize.generate_tokens(io.StringIO(plain).readline):
            name = tokenize.tok_name[token.type]
            if name == "STRING":
                found.update(range(token.start[0] + 1, token.end[0] + 1))
            elif name.endswith("STRING_START"):  # f-strings are several tokens from 3.12 on
                started.append(token.start[0])
            elif name.endswith("STRING_END"):
                found.update(range(started.pop() + 1, token.end[0] + 1))
        return frozenset(found)

    # Calls ------------------------------------------------------------------------------------

    def calls_at(self, line: int) -> list[ast.Call]:
        """Calls of a name or an attribute that this line is a part of, outer ones first."""
        calls = [
            node
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Call)
            and isinstance(node.func, (ast.Name, ast.Attribute))
            and node.lineno <= line <= (node.end_lineno or node.lineno)
        ]
        calls.sort(key=lambda call: (self.span(call)[0], -self.span(call)[1]))
        return calls

    def calls_of(self, line: int, name: str) -> list[ast.Call]:
        """The calls on a line of what has this name, or was imported under it."""
        calls = [c for c in self.calls_at(line) if self.real_name(c) == name]
        return _beginning_at(line, calls) or calls[-1:]

    def real_name(self, call: ast.Call) -> str:
        """The last name of what is called, before it was imported under another."""
        name = last_name(call.func)
        return self._aliases.get(name, name) if isinstance(call.func, ast.Name) else name

    @functools.cached_property
    def _aliases(self) -> dict[str, str]:
        imports = (node for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom))
        return {a.asname: a.name for node in imports for a in node.names if a.asname}

    def model_call(self, line: int) -> ast.Call | None:
        """The call of the model on a line that has other calls as well.

        It is none of a library, a builtin or a method of a tensor. Of several, losses and functions
        of the file or imported are left out, names that speak of a model go first, and what is then
        left is followed inwards along first arguments: `criterion(model(x), y)`.
        """
        calls = [call for call in self.calls_at(line) if _may_be_model(call)]
        calls = _beginning_at(line, calls) or calls
        calls = [call for call in calls if not LOSS.search(last_name(call.func))] or calls
        calls = [call for call in calls if root_name(call.func) not in self._functions] or calls
        calls = [call for call in calls if MODEL.search(last_name(call.func))] or calls
        if not calls:
            return None
        call = calls[0]
        while inner := [c for c in calls if call.args and c in ast.walk(call.args[0])]:
            call = inner[0]
        return call

    @functools.cached_property
    def _functions(self) -> frozenset[str]:
        """Names of the module that are functions, classes or imported."""
        kinds = (ast.Import, ast.ImportFrom, *DEFINITIONS)
        found = [node for node in inside_scope(self.tree) if isinstance(node, kinds)]
        return frozenset(name for node in found for name in names_bound(node))

    def arguments(self, call: ast.Call) -> Arguments:
        """What stands between the parentheses of a call."""
        start, end = self.span(call)
        open_brackets: list[_Bracket] = [_Bracket(start)]
        closed = open_brackets[0]
        for token_start, token_end, text in self._tokens(start, end):
            if text in ("(", "[", "{"):
                open_brackets[-1].add(token_start, token_end, text)
                open_brackets.append(_Bracket(token_end))
            elif text in (")", "]", "}"):
                closed = open_brackets.pop()
                open_brackets[-1].add(token_start, token_end, text)
            elif text == "," and not open_brackets[-1].n_lambdas:
                open_brackets[-1].is_open, open_brackets[-1].comma = False, token_end
            else:
                open_brackets[-1].add(token_start, token_end, text)
        if len(closed.arguments) != len(call.args) + len(call.keywords):
            raise DoesNotFit
        comma = closed.comma if closed.comma and not closed.is_open else None
        return Arguments(closed.opening, tuple(closed.arguments), comma)

    def _tokens(self, start: int, end: int) -> Iterator[tuple[int, int, str]]:
        """The tokens of an expression that say something, with their offsets."""
        text = f"({self.text[start:end]})"  # in parentheses, lines may end anywhere
        starts = [start - 1]
        for line in split_lines(text):
            starts.append(starts[-1] + len(line))
        plain = "".join(line.rstrip("\r\n") + "\n" for line in split_lines(text))
        found: list[tuple[int, int, str]] = []
        for token in tokenize.generate_tokens(io.StringIO(plain).readline):
            if token.string.strip() and token.type != tokenize.COMMENT:
                first, last = (starts[row - 1] + column for row, column in (token.start, token.end))
                found.append((first, last, _as_text(token)))
        yield from found[1:-1]

    # Names ------------------------------------------------------------------------------------

    def binds(self, name: str, path: Sequence[ast.stmt]) -> bool:
        """Whether a name has a value where the last statement of a path begins."""
        line = first_line(path[-1])
        scopes = [node for node in path[:-1] if isinstance(node, FUNCTIONS)]
        if scopes:
            if self._is_bound(name, scopes[-1]):  # local all through the function, bound or not
                return self._is_bound(name, scopes[-1], line)
            return any(self._is_bound(name, scope) for scope in (*scopes[:-1], self.tree))
        return self._is_bound(name, self.tree, line)

    def _is_bound(self, name: str, scope: ast.AST, before: int | None = None) -> bool:
        if isinstance(scope, FUNCTIONS) and name in parameters(scope):
            return True
        return any(
            name in names_bound(node)
            for node in inside_scope(scope)
            if before is None or _end_line(node) < before
        )

    def is_local(self, name: str, path: Sequence[ast.stmt]) -> bool:
        """Whether an assignment there keeps the name what it is: a global would become a local."""
        scopes = [node for node in path[:-1] if isinstance(node, FUNCTIONS)]
        if not scopes:
            return True
        return self._is_bound(name, scopes[-1])


def parse(text: str) -> ast.Module:
    """The tree of a source, without the warnings that are the user's own affair."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def split_lines(text: str) -> list[str]:
    """Lines as Python counts them, with their ends; str.splitlines knows more kinds of ends."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)


def indentation(line: str) -> str:
    """The whitespace that a line begins with."""
    return line[: len(line) - len(line.lstrip(" \t\f"))]


def replaced(text: str, changes: Sequence[Change]) -> str:
    """The text with changes made; of those at one place, the first one goes first."""
    parts: list[str] = []
    end = 0
    for change in sorted(changes, key=lambda one: (one.start, one.end)):
        if change.start < end:
            raise ValueError("two changes overlap")
        parts += (text[end : change.start], change.new)
        end = change.end
    return "".join((*parts, text[end:]))


def moved(offset: int, changes: Sequence[Change]) -> int:
    """Where what stood at an offset stands after changes; insertions there come before it."""
    return offset + sum(
        len(one.new) - (one.end - one.start)
        for one in changes
        if one.start <= offset and one.end <= offset
    )


def first_line(node: ast.stmt) -> int:
    """The line a statement begins on, its decorators included."""
    decorators = node.decorator_list if isinstance(node, DEFINITIONS) else []
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def blocks(node: ast.stmt) -> list[list[ast.stmt]]:
    """The blocks of statements in a compound statement."""
    parts: list[ast.AST] = [node, *getattr(node, "handlers", ()), *getattr(node, "cases", ())]
    named = [getattr(part, name, []) for part in parts for name in ("body", "orelse", "finalbody")]
    found = [block for block in named if block]
    return sorted(found, key=lambda block: block[0].lineno)


def last_name(function: ast.expr) -> str:
    """`DataLoader` of torch.utils.data.DataLoader."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def root_name(function: ast.expr) -> str:
    """`torch` of torch.utils.data.DataLoader; empty where it begins with no name."""
    while isinstance(function, (ast.Attribute, ast.Subscript)):
        function = function.value
    return function.id if isinstance(function, ast.Name) else ""


def _may_be_model(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Name):
        return call.func.id not in LIBRARIES and not hasattr(builtins, call.func.id)
    return root_name(call.func) not in LIBRARIES and last_name(call.func) not in METHODS


def _beginning_at(line: int, calls: Sequence[ast.Call]) -> list[ast.Call]:
    # Of a call over several lines, Python tells the first, or from 3.12 on the attribute's.
    return [call for call in calls if line in (call.lineno, call.func.end_lineno)]


def _end_line(node: ast.AST) -> int:
    """The last line of what has to be over before the names it binds can be used."""
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return node.target.end_lineno or node.lineno
    if isinstance(node, (ast.With, ast.AsyncWith, ast.ExceptHandler)):
        return node.lineno
    return int(getattr(node, "end_lineno", None) or 0)


def inside_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, without those inside the functions and classes that it defines."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, (*DEFINITIONS, ast.Lambda)):
            yield from inside_scope(node)


def names_bound(node: ast.AST) -> list[str]:
    """The names that a node gives values to."""
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.split(".")[0] for alias in node.names]
    if isinstance(node, DEFINITIONS):
        return [node.name]
    if isinstance(node, ast.Assign):
        return _stored(node)
    if isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        return _stored(node.target)
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return _stored(node.target)
    if isinstance(node, (ast.With, ast.AsyncWith)):
        return [name for item in node.items for name in _stored(item)]
    return []


def _stored(node: ast.AST) -> list[str]:
    return [
        one.id
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    ]


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """The names of a function's parameters."""
    arguments = function.args
    more = (arguments.vararg, arguments.kwarg)
    return [
        one.arg
        for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *more)
        if one is not None
    ]


def _as_text(token: tokenize.TokenInfo) -> str:
    """The text of an operator; that of anything else is no bracket or comma of the call's."""
    return token.string if token.type in (tokenize.OP, tokenize.NAME) else "…"
