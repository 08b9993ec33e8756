"""Checks of arguments that every package needs; each error names the argument, the value and the fix."""

import contextlib
import difflib
import inspect
import math
import numbers
import operator
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..compat.wrong_use import WrongUse
from .environment import without_password

_LONGEST = 120  # characters of a value in a message
_LARGEST = 8  # numbers of an array that are shown


def show(value: Any) -> str:
    """Return `value` for a message in one line, without passwords, truncated if it is long.

    Specs and tensors of more than a few numbers are shown as "(batch, 4) float32", objects without an address.

    >>> import tensorflow as tf
    >>> show((tf.TensorSpec([None, 4]), {"a": tf.TensorSpec([2], tf.int32)})), show("a"), show(show)
    ("((batch, 4) float32, {'a': (2,) int32})", "'a'", '<function show>')
    """
    text = without_password(re.sub(r"\s+", " ", _text(value)))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _text(value: Any) -> str:
    if type(value) in (list, tuple):
        parts = ", ".join(map(_text, value[:_LONGEST])) + "," * (type(value) is tuple and len(value) == 1)
        return f"[{parts}]" if type(value) is list else f"({parts})"
    if type(value) is dict:
        return "{" + ", ".join(f"{key!r}: {_text(each)}" for key, each in [*value.items()][:_LONGEST]) + "}"
    shape, dtype = (getattr(value, name, None) for name in ("shape", "dtype"))
    array = isinstance(value, np.ndarray | np.generic)
    holds_numbers = array or hasattr(value, "numpy") or hasattr(value, "device")
    if shape is not None and dtype is not None and not (holds_numbers and _size(shape) <= _LARGEST):
        return f"{_shape(shape)} {getattr(dtype, 'name', dtype)}"
    text = repr(value)
    if " at 0x" in text and hasattr(value, "get_config"):
        return type(value).__name__
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def _size(shape: Any) -> float:
    with contextlib.suppress(TypeError, ValueError):  # of sizes that are not known
        return math.prod(shape)
    return math.inf


def _shape(shape: Any) -> str:
    """Return a shape as text: "batch" for an unknown first size, "?" for any other, "(...)" for an unknown rank."""
    if getattr(shape, "rank", 0) is None:
        return "(...)"
    sizes = ["batch" if n == 0 else "?" for n in range(len(shape))]
    known = [str(size) if size is not None else word for size, word in zip(shape, sizes)]
    return f"({', '.join(known)}{',' * (len(known) == 1)})"


def check_names(method: Any, unknown: Iterable[str]) -> None:
    """Reject arguments that a method does not have, with the name that was probably meant."""
    for name in unknown:
        known = [each for each in inspect.signature(method).parameters if not each.startswith("_")]
        near = difflib.get_close_matches(name, known, 1, 0.6)
        fix = f"did you mean `{near[0]}`?" if near else f"it takes {', '.join(known)}."
        raise TypeError(f"`{name}` is an unexpected keyword argument of `{method.__name__}`: {fix}")


def whole_number(
    name: str, value: Any, least: int = 1, optional: bool = False, words: tuple[str, ...] = ()
) -> Any:
    """Return `value` if it is an int of at least `least`; bool is rejected. NumPy's integers become int.

    None is allowed too if `optional`, and the strings `words`. Raise a ValueError for anything else.
    """
    if (value is None and optional) or (isinstance(value, str) and value in words):
        return value
    try:
        found = None if isinstance(value, bool) else operator.index(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, AttributeError):  # also of arrays and tensors, which have the method
        found = None
    if found is None or found < least:
        allowed = "".join(f'"{word}" or ' for word in words) + ("None or " if optional else "")
        raise WrongUse(
            f"`{name}` must be {allowed}a whole number of at least {least}. Received: {show(value)}"
        )
    return found


def number(
    name: str,
    value: Any,
    *,
    least: float = -math.inf,
    above: float | None = None,
    most: float = math.inf,
    below: float | None = None,
    finite: bool = True,
    optional: bool = False,
) -> Any:
    """Return `value` if it is a Python or NumPy number in a range; raise a ValueError for a bool, NaN or anything else.

    `above` and `below` are limits that are not valid themselves. Infinity is allowed unless `finite`, None if `optional`.
    """
    if value is None and optional:
        return None
    try:
        found = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # of an int above every float
        found = math.nan
    fits = least <= found <= most and (above is None or found > above) and (below is None or found < below)
    if not fits or (finite and not math.isfinite(found)):
        limits = [f"of at least {least:g}"] if math.isfinite(least) else []
        limits += [] if above is None else [f"above {above:g}"]
        limits += [f"of at most {most:g}"] if math.isfinite(most) else []
        limits += [] if below is None else [f"below {below:g}"]
        kind = ("None or " if optional else "") + ("a finite number" if finite and not limits else "a number")
        raise WrongUse(
            f"`{name}` must be {' '.join([kind, ' and '.join(limits)]).strip()}. Received: {show(value)}"
        )
    return value


def truth(name: str, value: Any) -> bool:
    """Return `value` as a bool if it is one, or 0 or 1; raise a ValueError otherwise, as a str such as "no" is true."""
    if not isinstance(value, bool | np.bool_ | int | np.integer) or value not in (0, 1):
        raise WrongUse(f"`{name}` must be True or False. Received: {show(value)}")
    return bool(value)


def one_of(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return `value` if it is one of the strings `choices`; raise a ValueError otherwise."""
    if not isinstance(value, str) or value not in choices:
        *first, last = (f'"{choice}"' for choice in choices)
        raise WrongUse(f"`{name}` must be {', '.join(first)} or {last}. Received: {show(value)}")
    return value


def function(name: str, value: Any, optional: bool = False) -> Any:
    """Return `value` if it can be called; raise a TypeError otherwise."""
    if not callable(value) and not (value is None and optional):
        raise WrongUse(f"`{name}` must be a function. Received: {show(value)}")
    return value


def takes_arguments(value: Any, count: int) -> bool:
    """Return whether a function can be called with `count` arguments; True where that is not known."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # some C functions have no signature
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True
