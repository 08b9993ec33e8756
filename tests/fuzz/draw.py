"""Draws a case from a seed."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Any

from .case import Case
from .rules import impossible

TRIES = 100_000


def draw(
    seed: int, accepts: Callable[[Case], bool] = lambda case: True, given: Mapping[str, Any] | None = None
) -> Case:
    """The case of a seed with the `given` fields: the first that is possible and that `accepts`. ValueError: none is."""
    stream = random.Random(seed)
    for _ in range(TRIES):
        case = dataclasses.replace(drawn(Case, stream), seed=seed, **(given or {}))
        if accepts(case) and impossible(case) is None:
            return case
    raise ValueError(f"seed {seed}: none of {TRIES} cases with {given} is possible; give fewer fields")


def drawn(specification: type, stream: random.Random) -> Any:
    """An instance of a dataclass whose fields have options; other fields keep their default."""
    fields = [field for field in dataclasses.fields(specification) if "options" in field.metadata]
    return specification(**{field.name: _drawn_value(stream, **field.metadata) for field in fields})


def _drawn_value(
    stream: random.Random, options: tuple[Any, ...], plain: float, least: int | None = None, most: int = 1
) -> Any:
    if least is None:
        return options[0] if stream.random() < plain else stream.choice(options[1:])
    count = least if stream.random() < plain else stream.randint(least, most)
    if isinstance(options[0], type):
        return tuple(drawn(options[0], stream) for _ in range(count))
    return tuple(stream.sample(options, count))
