"""Paths with placeholders such as `{epoch:03d}`."""

from __future__ import annotations

import os
import string
from typing import Any

from ..distribute.arguments import shown


def check_template(argument: str, place: Any) -> None:
    """Refuses what is no path, and placeholders that cannot be filled.

    Raises:
        ValueError: see above.
    """
    if not isinstance(place, str | os.PathLike) or not os.fspath(place):
        raise ValueError(f"{argument} must be a path, as a str or a pathlib.Path. Received: {shown(place)}")
    try:
        for field, form in fields(os.fspath(place)):
            if not field or field.isdecimal():
                raise ValueError("a placeholder has no name")
            if not any(_can_be_written(number, form) for number in (1, 1.0)):
                raise ValueError(f"{form!r} is no format of a number")
    except ValueError as error:
        raise ValueError(
            f"{argument} cannot be filled in ({error}): write placeholders as {{epoch:03d}} or {{val_loss:.2f}}. "
            f"Received: {shown(os.fspath(place))}"
        ) from error


def fields(text: str) -> list[tuple[str, str]]:
    """The name and the format of each placeholder."""
    parts = string.Formatter().parse(text)
    return [(field, form or "") for _, field, form, _ in parts if field is not None]


def _can_be_written(number: float, form: str) -> bool:
    try:
        format(number, form)
    except ValueError:
        return False
    return True
