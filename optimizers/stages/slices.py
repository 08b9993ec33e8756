"""Gradients are dense tensors or `tf.IndexedSlices`; these functions treat both alike.

`tf.IndexedSlices` can name a row several times, and then means the sum. Squares and norms are wrong until the duplicates
are added up, so `run_stages` does that once, right after aggregation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

DENSEST = 16  # rows of a tensor for each row that slices name
Gradient = Any  # tf.Tensor | tf.IndexedSlices, the shape and dtype of its variable


class Piece:
    """A stage with settings: saved and restored from the fields of its dataclass."""

    def get_config(self) -> dict[str, Any]:
        """The arguments, for saving."""
        return dataclasses.asdict(self)  # type: ignore[call-overload]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """The reverse of `get_config`."""
        return cls(**config)


def map_values(fn: Callable[[tf.Tensor], tf.Tensor], gradient: Gradient) -> Gradient:
    """`fn` of the gradient's numbers. With slices `fn(0)` must be 0 and the rows unique where `fn` is not linear."""
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(fn(gradient.values), gradient.indices, gradient.dense_shape)
    return fn(gradient)


def times(gradient: Gradient, factor: Any, dtype: Any = None) -> Gradient:
    """`gradient * factor`, first cast to `dtype` (None: its own)."""

    def multiply(values: tf.Tensor) -> tf.Tensor:
        values = tf.cast(values, dtype or values.dtype)
        return values * tf.cast(factor, values.dtype)

    return map_values(multiply, gradient)


def divided(gradient: Gradient, divisor: Any) -> Gradient:
    """`gradient / divisor`."""
    return map_values(lambda values: values / tf.cast(divisor, values.dtype), gradient)


def values_of(gradient: Gradient) -> tf.Tensor:
    """The numbers of the gradient, without the rows that slices leave out."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def dense(gradient: Gradient) -> tf.Tensor:
    """The gradient as one tensor of the variable's shape."""
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def shorter(gradient: Gradient, shape: Sequence[int], replicas: int) -> Gradient:
    """Slices as one tensor of this shape if those of so many replicas name as many rows as it has, or more; else as given.

    Then it is what travels with fewer bytes, and no row of it has to be looked for: the table of a feature that has fewer
    values than a batch has rows.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    named = tf.convert_to_tensor(gradient.indices).shape.num_elements()
    if named is None or shape[0] > replicas * named:
        return gradient
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, shape[0])


def unique_rows(gradient: Gradient, densely: bool = False) -> Gradient:
    """The same gradient with each row named once; a dense one is returned as it is.

    With `densely` slices become one tensor, unless it would have more than `DENSEST` times the rows they name. For XLA,
    which sorts the rows several times to name each once.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    if densely and _is_dense_enough(gradient):
        return dense(gradient)
    rows, where = tf.unique(gradient.indices)
    values = tf.math.unsorted_segment_sum(gradient.values, where, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def _is_dense_enough(slices: tf.IndexedSlices) -> bool:
    named = tf.convert_to_tensor(slices.indices).shape.num_elements()
    shape = None if slices.dense_shape is None else tf.get_static_value(slices.dense_shape)
    return named is not None and shape is not None and shape[0] <= DENSEST * named


def assign_add(variable: tf.Variable, gradient: Gradient) -> None:
    """Adds the gradient to a variable of the same shape."""
    if isinstance(gradient, tf.IndexedSlices):
        variable.scatter_add(gradient)
    else:
        variable.assign_add(gradient)
