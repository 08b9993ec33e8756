"""Batches whose arrays have different numbers of rows: labelled rows beside unlabelled ones, say.

Such a batch is made of units. Their number is the largest that divides the rows of every array: 8 and 56 rows are 8 units of
one row and of seven. A part of the batch is some of its units, so it has the same share of every array, and a mean over the
rows of any of them is joined with that share.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from .rows import is_scalar, row_count, slice_rows


def leaf_rows(structure: Any) -> list[Any]:
    """The rows of every array of a batch: ints where they are known while tracing, else int32 scalar tensors."""
    leaves = tf.nest.flatten(structure)
    return [row_count(leaf) for leaf in leaves if leaf is not None and not is_scalar(leaf)]


def unit_count(structure: Any) -> Any:
    """The units of a batch: its rows, where every array has as many. An int or an int32 scalar tensor."""
    counts = leaf_rows(structure)
    if all(isinstance(count, int) for count in counts):
        return math.gcd(*counts)
    if len(counts) == 1:
        return counts[0]
    with tf.device("CPU:0"):
        return tf.reduce_max(_divided(tf.stack(counts)))


def _divided(counts: tf.Tensor) -> tf.Tensor:
    """Euclid's algorithm for several numbers: each becomes their greatest common divisor."""

    def differ(counts: tf.Tensor) -> tf.Tensor:
        return tf.reduce_max(counts) > tf.reduce_min(counts)

    def less(counts: tf.Tensor) -> tuple[tf.Tensor]:
        counts = tf.where(counts == 0, tf.reduce_max(counts), counts)
        return ((counts - 1) % tf.maximum(tf.reduce_min(counts), 1) + 1,)

    return tf.while_loop(differ, less, (counts,))[0]


def slice_units(structure: Any, first: Any, last: Any, units: Any, device: str | None = None) -> Any:
    """Units `first` to `last - 1` of a batch that has `units` of them; arguments as of `slice_rows`."""

    def part(leaf: Any) -> Any:
        if leaf is None or is_scalar(leaf):
            return leaf
        rows = row_count(leaf)
        if isinstance(units, int) and isinstance(rows, int):
            each = rows // max(units, 1)
        else:
            each = rows // tf.maximum(units, 1)
        return slice_rows(leaf, first * each, last * each, device=device)

    return tf.nest.map_structure(part, structure)
