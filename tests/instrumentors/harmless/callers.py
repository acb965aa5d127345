"""Finds in the source of a function where it, or what it calls, looks at the frame of its caller."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from stagelens.instrumentors.instrumentor import innermost

# Calls inside of calls.
MOST = 4


def looks_at_caller(function: Any, owner: Any) -> Iterator[str]:
    yield from _looks(innermost(function), owner, 0, set())


def _looks(function: Any, owner: Any, depth: int, seen: set[CodeType]) -> Iterator[str]:
    if not isinstance(function, FunctionType) or function.__code__ in seen or depth > MOST:
        return
    seen.add(function.__code__)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            if _looked(call) > depth:
                yield f"{function.__qualname__}: {ast.unparse(call)}"
            called = innermost(_called(call.func, function, owner))
            yield from _looks(called, owner, depth + 1, seen)


def _looked(call: ast.Call) -> int:
    """Return the depth of the frame that *call* looks at, -1 for none: that of the function that calls it is 0."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name == "_getframe":
        return _number(call.args[0]) if call.args else 0
    if name == "stack" and ast.unparse(call.func) == "inspect.stack":
        return MOST
    levels = [
        _number(keyword.value) - 1
        for keyword in call.keywords
        if keyword.arg in {"stacklevel", "_parent_namespace_depth"}
    ]
    return max(levels, default=-1)


def _number(node: ast.expr) -> int:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else 0


def _called(node: ast.expr, function: FunctionType, owner: Any) -> Any:
    if isinstance(node, ast.Name):
        response = function.__globals__.get(node.id)
        return inspect.getattr_static(response, "__init__", None) if isinstance(response, type) else response
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        holder = owner if node.value.id in {"self", "cls"} else function.__globals__.get(node.value.id)
        if isinstance(holder, (type, ModuleType)):
            response = inspect.getattr_static(holder, node.attr, None)
            return getattr(response, "__func__", response)
    return None
