"""Checks a case: several replicas against one device, one device against plain Keras."""

from __future__ import annotations

import dataclasses
import traceback
from typing import Any

import keras
import numpy as np

import unisono

from .case import Case
from .elsewhere import run_and_resume, run_on_workers
from .rules import is_refused, not_as_keras
from .run import Numbers, run, strategy_of
from .tolerances import bounds


@dataclasses.dataclass(frozen=True)
class Finding:
    """A failure of a case."""

    kind: str  # what was compared and what differs, in words that stay the same while the case shrinks
    details: str  # lines with the numbers


def check(case: Case) -> Finding | None:
    """The first failure; None if there is none, or if the program is rejected as documented."""
    try:
        plain = run(case, keras)
    except Exception:
        return Finding("not a program: plain Keras fails", traceback.format_exc())
    try:
        one = run(case, unisono)
        if not_as_keras(case) is None:
            found = differences(one, plain, case)
            if found:
                return Finding("one device differs from Keras", _table(found, "ours", "Keras"))
        several = _on_replicas(case)
    except Exception as error:
        if is_refused(error):
            return None
        return Finding(f"error: {type(error).__name__}", traceback.format_exc())
    found = differences(several, one, case)
    if found:
        return Finding("replicas differ from one device", _table(found, case.strategy, "one device"))
    if several.unequal:
        return Finding("copies of a variable differ", ", ".join(several.unequal))
    return None


def _on_replicas(case: Case) -> Numbers:
    if case.strategy.startswith("workers"):
        return run_on_workers(case)
    return run_and_resume(case) if case.resume else run(case, unisono, strategy_of(case.strategy))


@dataclasses.dataclass
class Difference:
    """A number that differs between two programs."""

    name: str
    found: Any
    expected: Any
    relative: float


def differences(found: Numbers, expected: Numbers, case: Case) -> list[Difference]:
    """The numbers that differ by more than the tolerance of the case."""
    relative, least = bounds(case)
    result = []
    for name in sorted({*found.shown, *expected.shown}):
        a, b = found.shown.get(name), expected.shown.get(name)
        if a is None or b is None or a.shape != b.shape:
            result.append(Difference(name, a, b, float("inf")))
            continue
        a, b = a.astype("float64"), b.astype("float64")
        scale = max(least, float(np.max(np.abs(b), initial=0.0, where=np.isfinite(b))))
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        with np.errstate(invalid="ignore"):
            worst = float(np.max(np.where(same, 0.0, np.abs(a - b)), initial=0.0)) / scale
        if not worst <= relative:
            result.append(Difference(name, a, b, worst))
    return result


def _table(found: list[Difference], first: str, second: str) -> str:
    lines = []
    for difference in found[:8]:
        a, b = (np.array2string(np.ravel(v)[:4], precision=6) if v is not None else "absent" for v in
                (difference.found, difference.expected))  # fmt: skip
        lines.append(f"  {difference.name}: {first} {a}, {second} {b}; {difference.relative:.2g} relative")
    return "\n".join(lines)
