"""Bounds of a step's numbers, and how rows combine them.

A partial sum is multiplied before it is summed where no factor is infinite, and divided where no divisor is 0: `0 * inf` and
`0 / 0` of a part are not the part of a product or a quotient.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from .size import Extent, Size, is_open, never_negative

Interval = tuple[float, float]
"""The least and the largest value that a number can have, unless it is NaN."""

ANY: Interval = (-math.inf, math.inf)
_MOST_SAMPLES = 2**31 - 1  # counts of samples are int32


@functools.cache  # NumPy and TensorFlow compute them anew each time
def limits_of(dtype: tf.DType) -> tuple[Any, Any]:
    """Return the least and the largest number of a type."""
    return dtype.min, dtype.max


def round_outwards(found: Interval, dtype: tf.DType) -> Interval:
    """Return bounds in a type of numbers: integers wrap around, and near the largest number a sum may overflow."""
    if dtype.is_complex:
        return found
    least, most = limits_of(dtype)
    if dtype.is_integer:
        return found if least <= found[0] and found[1] <= most else ANY
    limit = float(most) / 2  # a comparison in float16 would overflow
    return (found[0] if found[0] >= -limit else -math.inf), (found[1] if found[1] <= limit else math.inf)


def is_finite(value: Any) -> bool:
    """Return whether no number is infinite, and no integer wrapped around."""
    return math.isfinite(value.interval[0]) and math.isfinite(value.interval[1])


def is_not_zero(value: Any) -> bool:
    """Return whether no number is 0, nor so small that its computation may round it to 0."""
    low, high = value.interval
    tiny = np.finfo(value.dtype.as_numpy_dtype).tiny if value.dtype.is_floating else 0
    return low > tiny or high < -tiny


def bounds_of_constant(array: np.ndarray) -> Interval:
    """Return the bounds of the numbers of an array that are no NaN."""
    if array.dtype.kind == "c":
        most = float(np.abs(array).max(initial=0))
        return -most, most
    numbers = array[array == array]
    return (float(numbers.min()), float(numbers.max())) if numbers.size else (0, 0)


def bounds_of_sizes(numbers: np.ndarray, dtype: tf.DType) -> Interval:
    """Return the bounds of sizes, which fit into their type."""
    bounds = [_of_size(each) for each in numbers.flat]
    return min(low for low, _ in bounds), min(max(high for _, high in bounds), float(limits_of(dtype)[1]))


def _of_size(size: Extent) -> Interval:
    if size is None or not is_open(size):
        return ANY if size is None else (float(size), float(size))  # type: ignore[arg-type]
    low = 1 if never_negative(size - 1) else 0 if never_negative(size) else -math.inf
    return low, largest_count(size) if low >= 0 else math.inf


def largest_count(size: Extent) -> float:
    """Return the largest number that a size, which is not negative, can be."""
    if size is None:
        return math.inf
    terms = size.terms.items() if isinstance(size, Size) else [((), size)]
    return float(sum(max(factor, 0) * _MOST_SAMPLES ** len(term) for term, factor in terms))


def combine_bounds(fn: Callable[[float, float], float]) -> Callable[[Any], Interval]:
    """Return a rule for an operation on two numbers whose extremes are those of the bounds."""

    def rule(call: Any) -> Interval:
        one, other = (value.interval for value in call.values)
        found = [fn(a, b) for a in one for b in other]
        return ANY if any(map(math.isnan, found)) else (min(found), max(found))

    return rule


def map_bounds(fn: Callable[[float], float]) -> Callable[[Any], Interval]:
    """Return a rule for a function that grows with its input."""
    return lambda call: (fn(call.values[0].interval[0]), fn(call.values[0].interval[1]))


def keep_bounds(number: int = 0) -> Callable[[Any], Interval]:
    """Return a rule for an operation whose outputs have numbers of one input."""
    return lambda call: call.values[number].interval


def bound_by(low: float, high: float) -> Callable[[Any], Interval]:
    """Return a rule for an operation whose outputs are always within these bounds."""
    return lambda call: (low, high)
