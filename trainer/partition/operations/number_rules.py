"""How rows follow the numbers of small integer tensors, as sizes."""

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from ..sizes.size import if_known
from ..sizes.size_arrays import Unknown, as_sizes
from .call import Call
from .row import MOST_ELEMENTS, Numbers

add, subtract, multiply = (if_known(fn) for fn in (operator.add, operator.sub, operator.mul))


def numbers_of(value: Any) -> np.ndarray:
    """Return the numbers of an input; one that is not known has unknown elements where its shape is."""
    if value.constant is not None:
        return value.constant
    shape = value.shape
    if shape is None or not all(isinstance(extent, int) for extent in shape) or not value.dtype.is_integer:
        raise Unknown
    if math.prod(shape) > MOST_ELEMENTS:
        raise Unknown
    return as_sizes(np.full(shape, None))


def compute_each(fn: Callable[..., Any], count: int = 2) -> Numbers:
    """Return a rule for an operation on each element of `count` inputs."""
    numpy = np.frompyfunc(fn, count, 1)
    return lambda call, number: as_sizes(numpy(*map(numbers_of, call.values)))


def move_elements(first: int = 0, end: int | None = 1) -> Numbers:
    """Return a rule for an operation that moves elements of the inputs from `first` to `end`; the others are fixed.

    TensorFlow tells where elements come from: it moves their positions.
    """

    def rule(call: Call, number: int) -> np.ndarray:
        moved = range(len(call.values))[first:end]
        arrays = [numbers_of(call.values[n]) for n in moved]
        elements = np.concatenate([array.ravel() for array in arrays])
        if elements.size and all(each is None for each in elements):
            raise Unknown
        ends = np.cumsum([array.size for array in arrays])
        positions = (np.arange(n - array.size, n).reshape(array.shape) for n, array in zip(ends, arrays))
        fixed = {n: call.fixed(n) for n in range(len(call.values)) if n not in moved}
        given = [fixed[n].astype(value.dtype.as_numpy_dtype) if n in fixed else next(positions)
                 for n, value in enumerate(call.values)]  # fmt: skip
        return as_sizes(elements[call.compute(given)[number]])

    return rule


def keep_list_elements(call: Call) -> Any:
    """Return the constant of all elements of the list that is the first input."""
    return call.values[0].elements


def reduce_elements(fn: Callable[[Any, Any], Any], start: Any) -> Numbers:
    """Return a rule for a reduction over all axes, from `start`; None: there must be an element."""

    def rule(call: Call, number: int) -> np.ndarray:
        data, axes = numbers_of(call.values[0]), call.fixed(1)
        if not np.size(axes):
            return data
        if (data.ndim > 1 and np.size(axes) != data.ndim) or (not data.size and start is None):
            raise Unknown
        found = functools.reduce(fn, data.ravel(), *([] if start is None else [start]))
        return as_sizes(np.full([1] * data.ndim, found) if call.attr("keep_dims") else found)

    return rule


def negate(known: bool | None) -> bool | None:
    """Return whether something is not so; None: it is not known."""
    return None if known is None else not known


def both(one: bool | None, other: bool | None) -> bool | None:
    """Return whether two things are so."""
    return False if one is False or other is False else None if None in (one, other) else True


def either(one: bool | None, other: bool | None) -> bool | None:
    """Return whether one of two things is so."""
    return negate(both(negate(one), negate(other)))
