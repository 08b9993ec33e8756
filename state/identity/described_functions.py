"""What a function computes, and the values that it is bound to, as text that is the same in every process."""

import ast
import functools
import hashlib
import inspect
import json
import types
from typing import Any

import numpy as np
import tensorflow as tf

from ..random_state import find_closed_over, is_of_user

FUNCTIONS = (types.FunctionType, types.MethodType, functools.partial)
CODE = " code "  # and a checksum of the source, as Python parses it; without one, the module
VALUES = " values "  # and a checksum of those that a function is bound to


def describe_function(value: Any, outer: tuple[Any, ...] = ()) -> str:
    """Return the name and source of a function, and the values of its defaults and of what it closes over."""
    if isinstance(value, functools.partial):
        return f"partial{_values([value.func, value.args, *sorted(value.keywords.items())], outer)}"
    value = inspect.unwrap(value)
    function = getattr(value, "__func__", value)
    cells = [value for _, value in find_closed_over(function)]
    defaults = [*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items())]
    return value.__qualname__ + describe_code(function) + _values([*cells, *defaults], (*outer, function))


def _values(bound: Any, outer: tuple[Any, ...]) -> str:
    """Return a checksum of values; of those that a function may change in use, such as lists, only the type counts."""
    texts = [text_of_value(each, outer) for each in bound]
    return f"{VALUES}{digest(json.dumps(texts).encode())}"


def text_of_value(value: Any, outer: tuple[Any, ...] = ()) -> str:
    """Return a value that a function uses as text, the same in every process; of what may change, only the type."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, tuple | frozenset):
        texts = [text_of_value(each, outer) for each in value]
        return f"{type(value).__name__} {texts if isinstance(value, tuple) else sorted(texts)}"
    eager = isinstance(value, tf.Tensor) and hasattr(value, "numpy")
    if eager or isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if array.dtype.hasobject:
            return f"{array.shape} {array.tolist()!r}"
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return f"{array.dtype}{array.shape} {digest(content.data)}"
    if any(value is each for each in outer):
        return "itself"
    if isinstance(value, FUNCTIONS):
        return describe_function(value, outer)
    if isinstance(value, type | types.ModuleType):
        return value.__name__
    cls = type(value)
    return f"a {cls.__qualname__}" + (describe_code(cls) if is_of_user(cls.__module__) else "")


def describe_code(defined: Any) -> str:
    """Return a checksum of what a function or class computes, however it is written; without source, the module."""
    try:
        lines, number = inspect.findsource(defined) if is_of_user(defined.__module__) else ([], 0)
        code = getattr(defined, "__code__", None)
        first = code.co_firstlineno if code else number + 1
        found = _definitions("".join(lines)).get((first, defined.__name__), [])
    except (OSError, TypeError, SyntaxError):
        found = []
    if len(found) > 1 and code:  # lambdas on one line: the innermost in which the function's own places are
        places = [p for p in code.co_positions() if p[2] is not None and p[:3:2] != p[1::2]]
        found = [node for node in found if _contains(node.body, places)][-1:] or found
    return CODE + (digest("".join(map(ast.dump, found)).encode()) if found else str(defined.__module__))


def _contains(body: Any, places: list[Any]) -> bool:
    first, last = (body.lineno, body.col_offset), (body.end_lineno, body.end_col_offset)
    return all(first <= place[:3:2] and place[1::2] <= last for place in places)


@functools.lru_cache(maxsize=16)
def _definitions(text: str) -> dict[tuple[int, str], list[Any]]:
    """Return the functions and classes of a module by the line, from 1, at which each begins, and their names."""
    found: dict[tuple[int, str], list[Any]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            first = min(each.lineno for each in (node, *getattr(node, "decorator_list", ())))
            found.setdefault((first, getattr(node, "name", "<lambda>")), []).append(node)
    return found


def digest(data: bytes | memoryview) -> str:
    """Return a short checksum."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()
