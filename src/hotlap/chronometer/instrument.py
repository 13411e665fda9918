"""Put marks around the body of a Python function without adding a frame to it.

A wrapper would show: as a line of ours in every traceback that passes through it, as an extra call
in the step, and as a frame that dynamo does not know how to treat. So the function is compiled
again from its own source, with a call before and a call after its body, under its own file name
and line numbers. Tracebacks stay the same to the byte.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any

_PLAIN = """
__hotlap_scope = __hotlap_enter({arguments})
try:
    BODY
finally:
    __hotlap_leave(__hotlap_scope)
"""
_SEEING_RETURNS = """
__hotlap_scope = __hotlap_enter({arguments})
try:
    BODY
except BaseException:
    __hotlap_leave(__hotlap_scope)
    raise
"""
_RETURNS_ALONE = """
__hotlap_scope = {first}
try:
    BODY
except BaseException:
    __hotlap_leave(__hotlap_scope)
    raise
"""
_ENTER_ALONE = """
__hotlap_scope = __hotlap_enter({arguments})
try:
    BODY
except BaseException:
    __hotlap_leave(__hotlap_scope)
    raise
finally:
    if __hotlap_scope is not None:
        __hotlap_guard.inside_module = __hotlap_scope
"""
_OUTERMOST = """
if __hotlap_guard.inside_module or __hotlap_is_tracing():
    BODY
else:
    __hotlap_scope = __hotlap_enter({arguments})
    try:
        if __hotlap_guard.around_call is not None and __hotlap_scope is not None:
            return __hotlap_guard.around_call({arguments})
        BODY
    finally:
        if __hotlap_scope is not None:
            __hotlap_guard.inside_module = False
            if __hotlap_scope:
                __hotlap_leave(__hotlap_scope)
"""


def instrument(
    function: Callable[..., Any],
    enter: Callable[..., Any] | None,
    leave: Callable[[Any], None],
    returns: Callable[[Any, Any], Any] | None = None,
    outermost: tuple[Any, Callable[[], bool]] | None = None,
    back_to: Any = None,
) -> Any:
    """A copy of `function` that calls `enter(*its arguments)` first and `leave(scope)` last.

    With `returns`, that is called instead of `leave` where the function returns: it gets the scope
    and the value, and returns the value. Without `enter`, its scope is the first argument.

    With `back_to`, an object, `leave` is called only if the function raises; that object's
    `inside_module` becomes what `enter` returned, unless that is None.

    With `outermost`, an object and a function, only calls outside of all others are marked: those
    made while the object's `inside_module` is false, which `enter` sets, and the function is. Then
    a scope of None is left alone, and `leave` is called only for one that is true. Where the object
    has an `around_call`, that is called in the place of the body.
    """
    lines, first_line = inspect.getsourcelines(function)
    source = "".join(lines)
    indent = len(source) - len(source.lstrip())
    # An enclosing block keeps the columns of an indented method, which tracebacks point at.
    block = "if True:\n" if indent else ""
    tree = ast.parse(block + (source if indent else textwrap.dedent(source)))
    ast.increment_lineno(tree, first_line - 1 - bool(block))
    definition = tree.body[0].body[0] if isinstance(tree.body[0], ast.If) else tree.body[0]
    if not isinstance(definition, ast.FunctionDef) or definition.decorator_list:
        raise TypeError(f"{function!r} is not a plain function")
    names: dict[str, Any] = {"__hotlap_enter": enter, "__hotlap_leave": leave}
    body = definition.body
    if returns is not None:
        names["__hotlap_returns"] = returns
        body = [_SeeReturns().visit(statement) for statement in body]
    template = _PLAIN if returns is None else _SEEING_RETURNS
    if enter is None:
        template = _RETURNS_ALONE
    if back_to is not None:
        template, names["__hotlap_guard"] = _ENTER_ALONE, back_to
    if outermost is not None:
        template = _OUTERMOST
        names["__hotlap_guard"], names["__hotlap_is_tracing"] = outermost
    arguments = _argument_names(definition)
    text = template.format(arguments=arguments, first=arguments.partition(",")[0])
    definition.body = _fill(ast.parse(text).body, body, definition)
    return _build(definition, names, function)


class _SeeReturns(ast.NodeTransformer):
    """`return x` becomes `return __hotlap_returns(scope, x)`."""

    def visit_Return(self, node: ast.Return) -> ast.Return:
        """Wrap one returned value."""
        if node.value is not None:
            call = ast.Call(
                ast.Name("__hotlap_returns", ast.Load()),
                [ast.Name("__hotlap_scope", ast.Load()), node.value],
                [],
            )
            node.value = _at(call, node.value)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """A function inside returns to the body, not from it."""
        return node


def _argument_names(definition: ast.FunctionDef) -> str:
    arguments = definition.args
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    names += [one.arg for one in (arguments.vararg, arguments.kwarg) if one is not None]
    return ", ".join(names)


def _fill(template: list[ast.stmt], body: list[ast.stmt], place: ast.AST) -> list[ast.stmt]:
    """The template with the body where it says BODY, placed on the line of the `def`."""

    class Filler(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> Any:
            if isinstance(node.value, ast.Name) and node.value.id == "BODY":
                return copy.deepcopy(body)
            return node

    for statement in template:
        for node in ast.walk(statement):
            _at(node, place)
    filled: list[ast.stmt] = [Filler().visit(statement) for statement in template]
    return filled


def _at(node: Any, place: Any) -> Any:
    if isinstance(node, (ast.stmt, ast.expr)):
        ast.copy_location(node, place)
        for child in ast.iter_child_nodes(node):
            if not hasattr(child, "lineno"):
                _at(child, place)
    return node


def _build(definition: ast.FunctionDef, names: dict[str, Any], function: Any) -> Any:
    """Compile under the function's own file and globals; our names come in as closure cells."""
    outer = ast.parse("def __hotlap_factory(): pass").body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.args.args = [ast.arg(name) for name in names]
    give_back = ast.Return(ast.Name(definition.name, ast.Load()))
    outer.body = [definition, give_back]
    module = ast.fix_missing_locations(ast.Module([outer], []))
    space: dict[str, Any] = {}
    exec(compile(module, function.__code__.co_filename, "exec"), function.__globals__, space)
    made = space["__hotlap_factory"](**names)
    if sys.version_info >= (3, 11):
        made.__code__ = made.__code__.replace(co_qualname=function.__code__.co_qualname)
    return functools.update_wrapper(made, function)
