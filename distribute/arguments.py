"""Checks of arguments that every package needs; each error names the argument, the value and the fix."""

from __future__ import annotations

import inspect
import math
import numbers
import operator
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from .environment import without_password

_LONGEST = 120  # characters of a value in a message


def shown(value: Any) -> str:
    """`value` for a message: its `repr` in one line, without passwords, truncated where it is long."""
    text = without_password(re.sub(r"\s+", " ", repr(value)))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def whole_number(
    name: str, value: Any, least: int = 1, optional: bool = False, words: tuple[str, ...] = ()
) -> Any:
    """`value`, if it is an int of at least `least`; bool is rejected. NumPy's integers become int.

    None is allowed too if `optional`, and the strings `words`. Raises a ValueError for anything else.
    """
    if (value is None and optional) or (isinstance(value, str) and value in words):
        return value
    try:
        found = None if isinstance(value, bool) else operator.index(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, AttributeError):  # also of arrays and tensors, which have the method
        found = None
    if found is None or found < least:
        allowed = "".join(f'"{word}" or ' for word in words) + ("None or " if optional else "")
        raise ValueError(
            f"`{name}` must be {allowed}a whole number of at least {least}. Received: {shown(value)}"
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
    """`value` unchanged, if it is a Python or NumPy number in a range; a ValueError for a bool, a str, NaN or anything else.

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
        raise ValueError(
            f"`{name}` must be {' '.join([kind, ' and '.join(limits)]).strip()}. Received: {shown(value)}"
        )
    return value


def truth(name: str, value: Any) -> bool:
    """`value` as a bool, if it is one, or 0 or 1; else a ValueError: a str such as "no" would count as true."""
    if not isinstance(value, bool | np.bool_ | int | np.integer) or value not in (0, 1):
        raise ValueError(f"`{name}` must be True or False. Received: {shown(value)}")
    return bool(value)


def one_of(name: str, value: Any, choices: Iterable[str]) -> str:
    """`value`, if it is one of the strings `choices`; else a ValueError."""
    if not isinstance(value, str) or value not in choices:
        *first, last = (f'"{choice}"' for choice in choices)
        raise ValueError(f"`{name}` must be {', '.join(first)} or {last}. Received: {shown(value)}")
    return value


def function(name: str, value: Any, optional: bool = False) -> Any:
    """`value`, if it can be called; else a TypeError."""
    if not callable(value) and not (value is None and optional):
        raise TypeError(f"`{name}` must be a function. Received: {shown(value)}")
    return value


def takes_arguments(value: Any, count: int) -> bool:
    """Whether a function can be called with `count` arguments; True where that is not known."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # some C functions have no signature
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True
