"""Numbers that count the samples: `stride * i` plus a rest between bounds, where `i` is a position along an axis.

They come from a `Range`, and stay such numbers through sums, products with an integer and changes of shape. What does not
keep numbers ends them.
"""

import dataclasses
import math
from typing import Any

from .size import Extent, Shape, per_sample, quotient, same_extent
from .size_arrays import product


@dataclasses.dataclass(frozen=True)
class Progression:
    """The numbers `stride * i + rest` of a tensor of integers, `i` being the position along `axis`, divided by `repeat`.

    Attributes:
        low, high: bounds of the rest.
        repeat: how many entries along the axis are of one `i`.
        column: whether only the first number along the last axis is of this kind.
        chosen: whether they are the positions of chosen samples.
    """

    axis: int
    stride: int
    low: float = 0
    high: float = 0
    repeat: Extent = 1
    column: bool = False
    chosen: bool = False


CHOSEN = Progression(0, 1, 0, math.inf, chosen=True)
"""Of the positions of chosen samples, which increase."""
OF_SAMPLES = Progression(0, 0, 0, math.inf, chosen=True)
"""Of the positions of the samples to which ragged values belong."""


IN_COLUMN = dataclasses.replace(OF_SAMPLES, column=True)
"""Of the places of the entries of a sparse array, which begin with the position of their sample."""


def is_range(call: Any, shape: Shape) -> Progression | None:
    """Return the progression of a `Range`."""
    first, step = call.item(0), call.item(2)
    return Progression(0, step, first, first) if isinstance(first, int) and isinstance(step, int) else None


def keep_progression(call: Any, shape: Shape) -> Progression | None:
    """Return the progression of the first input, whose numbers an operation keeps, with the axis in the new shape."""
    found, old = call.values[0].progression, call.values[0].shape
    if found is None or old is None or shape is None or old == shape:
        return found
    before, extent, after = product(old[: found.axis]), old[found.axis], product(old[found.axis + 1 :])
    if shape and not found.column and (before, after, product(shape[1:])) == (1, 1, 1):
        return dataclasses.replace(found, axis=0)
    for axis, each in enumerate(shape):
        kept = each in (extent, product([extent, after])) and product(shape[:axis]) == before
        if kept and not found.column and found.repeat == 1 and None not in (each, before):
            return dataclasses.replace(found, axis=axis, repeat=1 if each == extent else after)
    return None


def add_progressions(call: Any, shape: Shape) -> Progression | None:
    """Return the progression of a sum: of two along one axis, or of one and of numbers with bounds."""
    placed = [_place(value, shape) for value in call.values]
    known = [found for found in placed if found is not None]
    if len({found.axis for found in known}) != 1:
        return None
    ends = [(found.low, found.high) if found else value.interval for found, value in zip(placed, call.values)]
    low, high = map(sum, zip(*ends))
    return Progression(known[0].axis, sum(found.stride for found in known), low, high)


def multiply_progression(call: Any, shape: Shape) -> Progression | None:
    """Return the progression of a product with one positive integer."""
    for value, factor in (call.values, reversed(call.values)):
        found, times = _place(value, shape), factor.constant
        number = None if times is None or times.size != 1 else times.item()
        if found is not None and isinstance(number, int) and number > 0:
            return Progression(found.axis, found.stride * number, found.low * number, found.high * number)
    return None


def keep_if_not_negative(call: Any, shape: Shape) -> Progression | None:
    """Return the progression of positions of which the larger ones of two are taken, the others being at most 0."""
    for value, other in (call.values, reversed(call.values)):
        found = value.progression
        if found is not None and found.low >= 0 and found.stride >= 0 and other.interval[1] <= 0:
            return found if value.shape == shape and shape is not None else None
    return None


def put_in_column(call: Any, shape: Shape) -> Progression | None:
    """Return the progression in the first column of a matrix that columns were joined to."""
    found, old = call.values[0].progression, call.values[0].shape
    if found is None or shape is None or len(shape) != 2 or found.axis != 0 or found.repeat != 1:
        return None
    axis = call.attr("axis") if len(old) == 1 else call.item(len(call.values) - 1)
    last = axis in (1, -1) and old[1:] in ([], [1])
    return dataclasses.replace(found, column=True) if last else None


def _place(value: Any, shape: Shape) -> Progression | None:
    """Return the progression of a value that is broadcast to a shape."""
    found = value.progression
    if found is None or value.shape is None or shape is None or found.column or found.repeat != 1:
        return None
    axis = found.axis + len(shape) - len(value.shape)
    kept = shape[axis] is not None and shape[axis] == value.shape[found.axis]
    return dataclasses.replace(found, axis=axis) if kept else None


def counts_samples(value: Any, extent: Extent, column: bool = False) -> bool:
    """Return whether numbers, or those of their first column, are `[0, 1, ..., n - 1]`, n being an extent with samples."""
    known = value.progression == Progression(0, 1, column=column) and per_sample(extent) is not None
    return known and value.shape[0] == extent


def are_chosen(value: Any, extent: Extent, column: bool = False) -> bool:
    """Return whether numbers, or those of their first column, are positions of own samples along an axis of this extent."""
    chosen = value.label.chosen if value.label.is_sharded else None
    if (
        chosen is None
        or extent is None
        or value.progression not in ((IN_COLUMN,) if column else (CHOSEN, OF_SAMPLES))
    ):
        return False
    return chosen[1] == (extent if value.progression == CHOSEN else same_extent(extent, chosen[1]))


def stays_in_parts(value: Any, extent: Extent) -> bool:
    """Return whether each sample has an equal part of this extent that contains the numbers of its own entries.

    This holds in the backward pass of a lookup in each sample: `k * [0, ..., n - 1]` is added to positions below `k`.
    """
    found, shape = value.progression, value.shape
    if found is None or found.axis or found.column or not shape or per_sample(shape[0]) is None:
        return False
    samples = quotient(shape[0], found.repeat)
    return found.low >= 0 and found.high < found.stride and product([found.stride, samples]) == extent
