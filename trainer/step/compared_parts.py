r"""What a number is, from its values on all rows and on parts of them: a mean over rows, a sum, or what looks across rows.

A function f of rows is computed on a few real rows X (as on one device), and on two parts A and B of them, of different
sizes (as on two replicas). With a, b and n rows:

===================  ==========================================================
a f(A) + b f(B)      equals n f(X): f is a mean
f(A) + f(B)          equals f(X): a sum, or scaled with a constant
2 (a f(A) + b f(B))  equals n f(X), and f uses the number of replicas: a mean over the rows, divided by that number
a f(A) + b f(B)      equals 2 n f(X), or f(A) + f(B) equals 2 f(X): a mean or a sum, times that number
===================  ==========================================================

Anything else looks across rows. All of them are linear, so gradients are compared by two numbers that are linear in theirs.

"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ...distribute.join_rules import (
    ACROSS_ROWS,
    EACH_ROW,
    LARGEST,
    MEAN,
    MEAN_PER_REPLICA,
    MEAN_TIMES_REPLICAS,
    SAME,
    SMALLEST,
    SUM,
    SUM_TIMES_REPLICAS,
    WriteRule,
)
from .observed import PARTS

_FINE = 1e-2  # of dtypes of more than 16 bits
_COARSE = 0.2  # with fewer, rounding in a deep model may be more than the tolerance: what compares rows differs by more


class Seen:
    """What was seen of one state: on all rows as one device, on all rows as one of two replicas, and on the two parts."""

    def __init__(self, one: Any, whole: Any, first: Any, last: Any, share: float, tolerance: float) -> None:
        self.one, self.whole, self.first, self.last = one, whole, first, last
        self.share, self.tolerance = share, tolerance

    def rule(self, key: Any) -> str | None:
        """The rule of a noted number; None: it is zero on all rows, so that it cannot be told."""
        each = [part["notes"].get(key) for part in (self.one, self.whole, self.first, self.last)]
        if any(value is None for value in each):
            return MEAN
        if ("in branch", *key[1:]) in self.one["notes"] and key[0] == "gradients":
            return SAME if self.is_same(key) else ACROSS_ROWS
        return rule_of(*each, share=self.share, tolerance=self.tolerance)

    def looks_across(self, keys: Iterable[Any]) -> list[Any]:
        """Those of the noted numbers that no rule joins."""
        return [key for key in keys if self.rule(key) == ACROSS_ROWS]

    def in_one_part(self, keys: Iterable[Any]) -> list[Any]:
        """Those of the noted numbers that one part has all of: sums, or means over rows of which the other has none."""
        return [key for key in keys if self.rule(key) == SUM and not self._each_part_has(key)]

    def _each_part_has(self, key: Any) -> bool:
        return all(np.any(part["notes"][key]) for part in (self.first, self.last))

    def is_extreme(self, key: Any, kind: str) -> bool:
        """Whether a noted scalar is the LARGEST or the SMALLEST, as `kind` says, of those of the parts."""
        one, first, last = (
            np.asarray(part["notes"][key], np.float64) for part in (self.one, self.first, self.last)
        )
        of_two = np.maximum if kind == LARGEST else np.minimum
        return _distance(of_two(first, last), one) <= self.tolerance * _size(one)

    def is_same(self, key: Any) -> bool:
        """Whether a noted number is the same on each part, and the one of all rows."""
        one, *parts = (
            np.asarray(part["notes"][key], np.float64) for part in (self.one, self.first, self.last)
        )
        return all(_distance(part, one) <= self.tolerance * _size(one) for part in parts)

    def rule_of_fed(self, number: int) -> str | None:
        """The rule of what a metric is fed with, where it is told without its values: SAME, EACH_ROW; else None."""
        if ("same", number) in self.one["notes"]:
            return SAME
        return None if self.rule(("size", number)) == MEAN else EACH_ROW

    def is_same_log(self, name: str) -> bool:
        """Whether a log is computed from what is the same on every replica alone."""
        return ("same log", name) in self.one["notes"]

    def is_left_over(self, key: Any, constant: np.ndarray) -> bool:
        """Whether the sum of the parts is what it is for all rows, and `constant` once too often."""
        one, first, last = (
            np.asarray(part["notes"][key], np.float64) for part in (self.one, self.first, self.last)
        )
        scale = max(np.abs(value).max(initial=0.0) for value in (one, first, last))
        return bool(np.abs(first + last - one - constant).max(initial=0.0) <= 10 * self.tolerance * scale)

    def writes(self, number: int) -> tuple[np.ndarray, ...]:
        """The values that were written to the `number`-th variable: on all rows, on each part."""
        return tuple(np.asarray(part["writes"][number]) for part in (self.one, self.first, self.last))


def rule_of(one: Any, whole: Any, first: Any, last: Any, share: float, tolerance: float) -> str | None:
    """The rule of a number from its values on all rows and on the parts; None: it is zero on all of them, or no number."""
    each = [np.asarray(value, np.float64) for value in (one, whole, first, last)]
    scale = max(np.abs(value).max(initial=0.0) for value in each)
    if scale == 0 or not all(np.isfinite(value).all() for value in each):
        return None
    one, whole, first, last = each
    mean = share * first + (1 - share) * last

    def found(tolerance: float) -> str:
        def close(a: np.ndarray, b: np.ndarray) -> bool:
            return bool(np.abs(a - b).max() <= tolerance * scale)

        if close(mean, one):
            return MEAN
        if not close(whole, one):  # it uses the number of replicas
            if close(PARTS * mean, one):
                return MEAN_PER_REPLICA
            if close(mean, PARTS * one):
                return MEAN_TIMES_REPLICAS
            if close(first + last, PARTS * one):
                return SUM_TIMES_REPLICAS
        if close(first + last, one) or close(first + last, whole):
            return SUM
        return ACROSS_ROWS

    rule = found(tolerance)
    return found(_COARSE) if rule == ACROSS_ROWS and tolerance > _FINE else rule


def degree(one: np.ndarray, once: np.ndarray, twice: np.ndarray) -> str:
    """What is nearest for a number that looks across rows, from its values for rows once and twice."""
    size = float(np.dot(once, once)) or 1.0
    if float(np.dot(twice, once)) > 1.5 * size:
        return SUM
    return MEAN_PER_REPLICA if float(np.dot(once, one)) < 0.75 * (float(np.dot(one, one)) or 1.0) else MEAN


def unchanged(cases: Sequence[Any]) -> bool:
    """Whether nothing was written in any case that was not there: it does not show what will be."""
    return all(np.array_equal(old, value, equal_nan=True) for old, *values in cases for value in values)


def write_rule(cases: Sequence[Any], share: float, tolerance: float) -> WriteRule | None:
    """The rule that holds in each case, as (old value, value on all rows, on the first, on the last); None: none does.

    What is added to a large value has few digits beside it: it is compared relative to what was added first, and relative to
    the value only if no rule holds then. Integers are compared to the digit.
    """
    each = [[np.asarray(value) for value in case] for case in cases]
    dtype = each[0][1].dtype
    cases = [[value.astype(np.float64) for value in case] for case in each]
    if dtype.kind in "biu":
        return _rule_that_holds(cases, share, _same_integers, () if dtype.kind == "b" else (1.0, 0.0))
    within = tolerance if tolerance > _FINE else tolerance * 1e-2  # half precision has no digits to spare
    found, rounding = _kept(cases), 2e-6 if tolerance < _FINE else 8e-3
    rounded = next((round(found, n) for n in range(6) if abs(found - round(found, n)) < rounding), found)
    near = _near_in_changes(within, _digits(dtype)), _near(within)
    rules = (_rule_that_holds(cases, share, each, (rounded, found, 1.0)) for each in near)
    return next((rule for rule in rules if rule is not None), None)


def _rule_that_holds(
    cases: Sequence[Any],
    share: float,
    near: Callable[..., bool],
    may_stay: Sequence[float],
) -> WriteRule | None:
    def holds(joined: Callable[..., np.ndarray]) -> bool:
        return all(near(joined(*case), case[1], case) for case in cases)

    extreme = _extreme(cases)
    if extreme is not None:
        return WriteRule(extreme)
    if holds(lambda old, one, first, last: share * first + (1 - share) * last):
        return WriteRule(MEAN)
    for kept in may_stay:
        if holds(lambda old, one, first, last, kept=kept: first + last - kept * old):
            return WriteRule(SUM, kept)
    if holds(lambda old, one, first, last: np.maximum(first, last)):
        return WriteRule(LARGEST)
    if holds(lambda old, one, first, last: np.minimum(first, last)):
        return WriteRule(SMALLEST)
    return None


def _extreme(cases: Sequence[Any]) -> str | None:
    """Whether the largest or the smallest of what was seen is kept, where the parts agree, so that a mean would do as well.

    They agree where both have the row that decides. Then what is kept is one number, m, or the old value that is beyond it:
    at least one old value must be.
    """
    if any(not np.array_equal(one, part) for _, one, *parts in cases for part in parts):
        return None
    ones = [one for _, one, *_ in cases]
    for kind, m, of_two in ((LARGEST, np.min(ones, 0), np.maximum), (SMALLEST, np.max(ones, 0), np.minimum)):
        kept = all(np.array_equal(one, of_two(old, m)) for old, one, *_ in cases)
        if kept and any(np.any((one == old) & (old != m)) for old, one, *_ in cases):
            return kind
    return None


def _kept(cases: Sequence[Any]) -> float:
    """The part of the old value that stays: what the parts have more together than all rows."""
    old = np.concatenate([case[0].ravel() for case in cases])
    more = np.concatenate([(first + last - one).ravel() for _, one, first, last in cases])
    return float(np.vdot(more, old) / np.vdot(old, old)) if np.any(old) else 1.0


def _near(within: float) -> Callable[..., bool]:
    """Compares relative to what is compared."""

    def near(value: np.ndarray, wanted: np.ndarray, case: Sequence[np.ndarray]) -> bool:
        return _distance(value, wanted) <= within * max(map(_size, case))

    return near


def _near_in_changes(within: float, digits: float) -> Callable[..., bool]:
    """Compares relative to what was added to the old value, but for the digits that are not there."""

    def near(value: np.ndarray, wanted: np.ndarray, case: Sequence[np.ndarray]) -> bool:
        added = max(_distance(part, case[0]) for part in case[1:])
        return _distance(value, wanted) <= within * added + digits * max(map(_size, case))

    return near


def _same_integers(value: np.ndarray, wanted: np.ndarray, case: Sequence[np.ndarray]) -> bool:
    return _distance(value, wanted) < max(0.1, 1e-15 * max(map(_size, case)))


def _digits(dtype: np.dtype) -> float:
    return 8 * 2.0 ** -{2: 8, 4: 24, 8: 53}.get(dtype.itemsize, 53)


def _size(value: np.ndarray) -> float:
    return float(np.abs(value).max(initial=0.0))


def _distance(value: np.ndarray, other: np.ndarray) -> float:
    return _size(value - other)


def much_later(value: np.ndarray, steps: int) -> np.ndarray:
    """The value that a scalar, such as a count of steps or the weight of a loss, might have later; else `value` itself."""
    if value.shape or value.dtype.kind not in "iuf":
        return value
    return value + np.asarray(steps if value.dtype.kind == "f" or value.dtype.itemsize > 2 else 1).astype(
        value.dtype
    )


def another(value: np.ndarray, size: float = 0.1) -> np.ndarray:
    """Another value that a state might have, which differs from the first by about `size` and at least 0.1."""
    if value.dtype.kind == "f":
        drawn = np.random.default_rng(0).uniform(0.5, 1.5, value.shape)
        size = max(size, 0.1) if np.isfinite(size) else 0.1
        return (value * drawn + size * drawn).astype(value.dtype)
    return ~value if value.dtype.kind == "b" else value + np.ones_like(value)
