"""The user's own source, as far as rules read it: files, their trees, and the loops that train.

A training loop is a `for` or `while` whose body, or a function called in it, calls `backward`. A
statement under an `if` of a loop is rare as far as can be seen, and belongs to no step.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotlap.levers.common.edits import read_source
from hotlap.levers.common.source import FUNCTIONS, Source
from hotlap.levers.common.workload import Site

MAX_BYTES = 1 << 20
"""A larger file is no program that somebody wrote."""


@dataclass(frozen=True, slots=True)
class File:
    path: str
    tree: ast.Module

    def site(self, node: ast.AST) -> Site:
        """Where a node stands."""
        return Site(self.path, getattr(node, "lineno", 1))


@dataclass(frozen=True, slots=True)
class Script:
    """The files of a training that are its user's."""

    files: tuple[File, ...]

    def walk(self, *kinds: type[ast.AST]) -> Iterator[tuple[File, ast.AST]]:
        """All nodes of these kinds."""
        for file in self.files:
            for node in ast.walk(file.tree):
                if not kinds or isinstance(node, kinds):
                    yield file, node

    def calls(self, *names: str) -> Iterator[tuple[File, ast.Call]]:
        """Calls of a function by its last name: `nn.Conv2d(…)` is one of 'Conv2d'."""
        for file, node in self.walk(ast.Call):
            assert isinstance(node, ast.Call)
            if last_name(node.func) in names:
                yield file, node

    def in_steps(self) -> Iterator[tuple[File, ast.AST]]:
        """Every node that is executed in each step, each once."""
        for file in self.files:
            seen: set[int] = set()
            for block in _step_blocks(file.tree):
                for node in _each_time(block):
                    if id(node) not in seen:
                        seen.add(id(node))
                        yield file, node

    def copies(self) -> Iterator[tuple[File, ast.Call]]:
        """Calls of `.to` and `.cuda` that are made in each step."""
        for file, node in self.in_steps():
            match node:
                case ast.Call(func=ast.Attribute(attr="to" | "cuda")):
                    yield file, node


def read_script(paths: Iterable[str]) -> Script:
    """The files that can be read and parsed, each once."""
    return Script(tuple(f for path in dict.fromkeys(paths) if (f := _read(path)) is not None))


def _read(path: str) -> File | None:
    try:
        if os.path.getsize(path) > MAX_BYTES:
            return None
        return File(path, Source(read_source(path)).tree)
    except (OSError, SyntaxError, ValueError):
        return None


def scripts_of(command: Sequence[str]) -> list[str]:
    """The Python files that a command names, where no process told which it ran."""
    return [str(Path(word).resolve()) for word in command if word.endswith(".py")]


def last_name(function: ast.expr) -> str:
    """The name that a call ends in."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def names_in(node: ast.AST) -> set[str]:
    """All plain names below a node."""
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument."""
    return next((one.value for one in call.keywords if one.arg == name), None)


def is_constant(node: ast.expr | None, value: object) -> bool:
    """Whether an expression is this very constant."""
    return isinstance(node, ast.Constant) and node.value is value


def _calls_backward(node: ast.AST) -> bool:
    return any(
        isinstance(one, ast.Call) and last_name(one.func) == "backward" for one in ast.walk(node)
    )


def _step_blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Bodies of the innermost loops that train, and of the functions that make a step in one."""
    functions = {f.name: f for f in ast.walk(tree) if isinstance(f, FUNCTIONS)}
    stepping = {name for name, f in functions.items() if _calls_backward(f)}
    for loop in ast.walk(tree):
        if not isinstance(loop, (ast.For, ast.While)):
            continue
        inner = [one for one in ast.walk(loop) if one is not loop]
        has_loop = any(isinstance(o, (ast.For, ast.While)) and _calls_backward(o) for o in inner)
        if has_loop:
            continue
        called = {last_name(o.func) for o in inner if isinstance(o, ast.Call)} & stepping
        called = {name for name in called if not _has_loop(functions[name])}
        if _calls_backward(loop) or called:
            yield loop.body
        yield from (functions[name].body for name in sorted(called))


def _has_loop(function: ast.AST) -> bool:
    """Whether a function trains in a loop of its own: its call is an epoch and no step."""
    loops = (o for o in ast.walk(function) if isinstance(o, (ast.For, ast.While)))
    return any(map(_calls_backward, loops))


def _each_time(block: Sequence[ast.stmt]) -> Iterator[ast.AST]:
    for statement in block:
        if isinstance(statement, ast.If):
            yield from ast.walk(statement.test)
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            for item in statement.items:
                yield from ast.walk(item)
            yield from _each_time(statement.body)
        elif isinstance(statement, ast.Try):
            yield from _each_time([*statement.body, *statement.finalbody])
        else:
            yield from ast.walk(statement)
