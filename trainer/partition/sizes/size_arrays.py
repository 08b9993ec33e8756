"""Shapes and arrays of sizes."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .size import Extent, Shape, Size, is_open, per_sample


class Unknown(Exception):
    """A value depends on the batch in a manner without a rule."""


def shape_of(shape: Any) -> Shape:
    """Return a `TensorShape` as a list."""
    return None if shape.rank is None else shape.as_list()


def product(sizes: Iterable[Extent]) -> Extent:
    """Return the product of sizes; of no sizes 1."""
    found: Extent = 1
    for size in sizes:
        found = 0 if size == 0 or found == 0 else None if size is None or found is None else found * size
    return found


def plain(values: np.ndarray | None) -> np.ndarray | None:
    """Return known integers as an array of them; None where one depends on the batch, or is not known."""
    if values is None or any(is_open(value) for value in values.flat):
        return None
    return values.astype(bool if values.size and all(isinstance(v, bool) for v in values.flat) else np.int64)


def as_sizes(values: Any) -> np.ndarray:
    """Return an array of sizes, as objects."""
    found = np.empty(np.shape(values), object)
    found[...] = values
    return found


def extents_of(values: np.ndarray | None) -> Shape:
    """Return the shape that a vector of sizes stands for; -1 and what is not known are None."""
    if values is None or values.ndim != 1:
        return None
    return [None if value == -1 else value for value in values.tolist()]


def merge_shapes(one: Shape, other: Shape) -> Shape:
    """Return a shape without the extents in which two differ; None where their ranks do."""
    if one is None or other is None or len(one) != len(other):
        return None
    return [a if a == b else None for a, b in zip(one, other)]


def at(shape: Sequence[Extent], samples: int) -> list[int | None]:
    """Return a shape for arrays with so many samples each; None for an extent that they do not determine."""
    return [extent.at(samples) if isinstance(extent, Size) else extent for extent in shape]


def align(shapes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the extents of each axis of what the shapes are broadcast to."""
    rank = max(map(len, shapes))
    return list(zip(*([1] * (rank - len(shape)) + [*shape] for shape in shapes)))


def broadcast_axes(shapes: Sequence[Any]) -> list[tuple[bool | None, ...]]:
    """Return for each axis of what two inputs were broadcast to whether the gradient of each is summed; None: not known.

    An extent that depends on the batch, or is not known, counts as broadcast against 1: where it is 1, the sum is over one
    element.
    """
    pairs = align(shapes)
    if all(one is not None and one == other for one, other in pairs):
        return [(False, False)] * len(pairs)
    known = [1 in pair or (None not in pair and pair[0] == pair[1]) for pair in pairs]
    return [
        tuple(extent == 1 if is_known or isinstance(extent, int) else None for extent in pair)
        for pair, is_known in zip(pairs, known)
    ]


def of_open_extent(sizes: np.ndarray | None, axis: int) -> tuple[int, ...] | None:
    """Return a vector of sizes with -1 for that of `axis`; None if one of the others varies, or one is not known."""
    if sizes is None or sizes.ndim != 1 or sizes[axis] is None:
        return None
    found = [-1 if n == axis else None if is_open(size) else size for n, size in enumerate(sizes)]
    return None if None in found else tuple(map(int, found))  # type: ignore[arg-type]


def of_one_sample(sizes: np.ndarray | None, axis: int) -> tuple[int, ...] | None:
    """Return a vector of sizes for one sample; None if that of `axis` is not a multiple of the batch, or others vary."""
    if sizes is None or sizes.ndim != 1:
        return None
    own = [per_sample(size) if n == axis else None if is_open(size) else size for n, size in enumerate(sizes)]
    return None if None in own else tuple(map(int, own))  # type: ignore[arg-type]
