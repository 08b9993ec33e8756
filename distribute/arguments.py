"""Checks of arguments that every package needs: one sentence that names the argument, the value and the cure."""

from __future__ import annotations

from typing import Any


def whole_number(name: str, value: Any, least: int = 1, optional: bool = False) -> Any:
    """`value`, if it is an int of at least `least`; bool is none. NumPy's integers become int.

    Args:
        name: of the argument, for the message.
        value: what was given.
        least: int; the smallest that has a meaning.
        optional: whether None is allowed too, and returned.

    Raises:
        ValueError: it is something else.
    """
    if value is None and optional:
        return None
    number = None if isinstance(value, bool) else getattr(value, "__index__", lambda: None)()
    if number is None or number < least:
        allowed = "None or a whole number" if optional else "a whole number"
        raise ValueError(f"`{name}` must be {allowed} of at least {least}. Received: {value!r}")
    return number
