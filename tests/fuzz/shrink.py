"""Shrinks a failing case as long as it fails for the same reason."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

from .case import Case
from .rules import impossible


def shrink(case: Case, is_wrong: Callable[[Case], bool], seconds: float = 120.0) -> Case:
    """The smallest failing case that is found within `seconds` by changing one choice at a time."""
    until = time.monotonic() + seconds
    tried = {case}
    smaller: Case | None = case
    while smaller is not None:
        case, smaller = smaller, None
        for candidate in (*_without_many(case), *simpler(case)):
            if candidate in tried or impossible(candidate) is not None:
                continue
            if time.monotonic() > until:
                return case
            tried.add(candidate)
            if is_wrong(candidate):
                smaller = candidate
                break
    return case


def _without_many(case: Case) -> Iterator[Case]:
    """The case with all, half and a quarter of its choices dropped."""
    fields = [f for f in dataclasses.fields(case) if "options" in f.metadata]
    chosen = [f for f in fields if getattr(case, f.name) != f.default]
    for parts in (1, 2, 4):
        size = -(-len(chosen) // parts)
        for first in range(0, len(chosen), size or 1):
            dropped = {f.name: f.default for f in chosen[first : first + size]}
            yield dataclasses.replace(case, **dropped)


def simpler(value: Any) -> Iterator[Any]:
    """Every specification with one choice fewer, the largest reductions first."""
    for field in dataclasses.fields(value):
        if "options" in field.metadata:
            for candidate in _simpler_values(getattr(value, field.name), **field.metadata):
                yield _with(value, field.name, candidate)


def _simpler_values(
    value: Any, options: tuple[Any, ...], plain: float, least: int | None = None, most: int = 1
) -> Iterator[Any]:
    if least is None:
        yield from options[: options.index(value)]
        return
    if len(value) > least:
        yield from (value[:index] + value[index + 1 :] for index in range(len(value)))
    for index, item in enumerate(value):
        if dataclasses.is_dataclass(item):
            yield from (value[:index] + (one,) + value[index + 1 :] for one in simpler(item))
        elif least and item != options[0]:
            yield value[:index] + (options[0],) + value[index + 1 :]


def _with(value: Any, name: str, candidate: Any) -> Any:
    """The specification with one field changed, and the fields that depend on it."""
    changed = dataclasses.replace(value, **{name: candidate})
    if isinstance(changed, Case) and len(changed.outputs) == 1 and changed.outputs_as == "list":
        return dataclasses.replace(changed, outputs_as="single")
    return changed
