"""Makes a failing program smaller as long as it fails alike."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

from partition.drawn_case import Argument, Case, Step


def smaller(
    case: Case, outcome: Any, fails_alike: Callable[[Case], Any], seconds: float = 20.0
) -> tuple[Case, Any]:
    """The smallest case that fails alike, found within `seconds` by changing one choice at a time, and its outcome."""
    until, tried = time.monotonic() + seconds, {case}
    found: Case | None = case
    while found is not None:
        case, found = found, None
        for candidate in simpler(case):
            if candidate in tried:
                continue
            if time.monotonic() > until:
                return case, outcome
            tried.add(candidate)
            if (again := fails_alike(candidate)) is not None:
                outcome, found = again, candidate
                break
    return case, outcome


def simpler(case: Case) -> Iterator[Case]:
    """The case with one choice fewer, the largest reductions first."""
    if len(case.steps) > 1:
        yield dataclasses.replace(case, steps=case.steps[:1])
        yield dataclasses.replace(case, steps=case.steps[:-1])
    if case.context:
        yield dataclasses.replace(case, context="")
    if case.gradient:
        yield dataclasses.replace(case, gradient="")
    for end in case.endings:
        yield dataclasses.replace(case, endings=tuple(each for each in case.endings if each != end))
    for number, step in enumerate(case.steps):
        for simple in _simpler_steps(step):
            yield dataclasses.replace(case, steps=(*case.steps[:number], simple, *case.steps[number + 1 :]))


def _simpler_steps(step: Step) -> Iterator[Step]:
    for number in range(len(step.attributes)):
        yield dataclasses.replace(
            step, attributes=(*step.attributes[:number], *step.attributes[number + 1 :])
        )
    extents = {
        extent
        for _, each in step.arguments
        if isinstance(each, Argument) and each.source != "sizes"
        for extent in each.shape
        if isinstance(extent, int) and extent > 1
    }
    for extent in sorted(extents, reverse=True):  # in all arguments alike
        yield _with(step, lambda each, extent=extent: _resized(each, extent))
    for number, (name, each) in enumerate(step.arguments):
        if isinstance(each, Argument):
            for simple in _simpler_arguments(each):
                arguments = (*step.arguments[:number], (name, simple), *step.arguments[number + 1 :])
                yield dataclasses.replace(step, arguments=arguments)


def _with(step: Step, change: Callable[[Argument], Argument]) -> Step:
    arguments = tuple(
        (name, tuple(map(change, each)) if isinstance(each, tuple) else change(each))
        for name, each in step.arguments
    )
    return dataclasses.replace(step, arguments=arguments)


def _resized(argument: Argument, extent: int) -> Argument:
    if argument.source == "sizes":
        return argument
    shape = tuple(1 if each == extent else each for each in argument.shape)
    return dataclasses.replace(argument, shape=shape)


def _simpler_arguments(argument: Argument) -> Iterator[Argument]:
    if argument.source in ("sum", "mean", "max"):
        yield dataclasses.replace(argument, source="constant")
    if argument.values in ("special", "zeros"):
        yield dataclasses.replace(argument, values="normal")
    if argument.values.startswith("extreme"):
        yield dataclasses.replace(argument, values="int 0 4")
    if argument.source == "batch" and "2n" in argument.shape:
        yield dataclasses.replace(argument, shape=tuple("n" if e == "2n" else e for e in argument.shape))
    if (
        argument.dtype in ("float32", "int64", "uint8", "int8", "int16", "uint16")
        and argument.source != "sizes"
    ):
        yield dataclasses.replace(argument, dtype="int32" if "int" in argument.dtype else "float64")
    if argument.number:
        yield dataclasses.replace(argument, number=0)
