"""How one batch is read out of a chunk, inside the compiled function.

Readers are pure functions, and there is one object for each way of reading: the compiled function is kept by it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from .rows import gather_rows, take_rows

Reader = Callable[[Any, Any], Any]


@functools.cache
def slice_reader(rows: int) -> Reader:
    """Reads batch `i` as the rows from `start + i * rows` of `(arrays, start)`; `start` is an int64 scalar."""

    def read(inputs: Any, i: Any) -> Any:
        arrays, start = inputs
        return take_rows(arrays, start + tf.cast(i, tf.int64) * rows, rows)

    return read


@functools.cache
def gather_reader(rows: int) -> Reader:
    """Reads batch `i` as the rows of `(arrays, indices)` that part `i` of `indices` (`[steps * rows]`) names."""

    def read(inputs: Any, i: Any) -> Any:
        arrays, indices = inputs
        chosen = tf.slice(indices, [tf.cast(i, tf.int32) * rows], [rows])
        return gather_rows(arrays, tf.ensure_shape(chosen, [rows]))

    return read


@functools.cache
def weighted_reader(reader: Reader, classes: tuple[int, ...], weights: tuple[float, ...]) -> Reader:
    """Adds to each batch `(x, y)` the weights of its rows' classes as `sample_weight`.

    Args:
        reader: the reader of the batches.
        classes: the classes that have a weight; all others weigh 1.
        weights: their weights.
    """

    def read(inputs: Any, i: Any) -> Any:
        x, y = reader(inputs, i)
        return x, y, weights_of_classes(y, classes, weights)

    return read


def weights_of_classes(y: tf.Tensor, classes: tuple[int, ...], weights: tuple[float, ...]) -> tf.Tensor:
    """The weight of each target's class.

    Args:
        y: class numbers `[rows]` or `[rows, 1]` of any number dtype, or scores or one-hot `[rows, ..., classes]`.
        classes: the classes that have a weight.
        weights: their weights; every other class weighs 1.

    Returns:
        floatx `[rows]` (`[rows, ...]` for targets with more dimensions).
    """
    table = tf.constant(weights, keras.config.floatx())
    numbers = _class_numbers(y)
    if not classes:
        return tf.ones_like(numbers, table.dtype)
    match = numbers[..., None] == tf.constant(classes, tf.int64)
    found = tf.gather(table, tf.argmax(match, axis=-1))
    return tf.where(tf.reduce_any(match, axis=-1), found, tf.ones_like(found))


def _class_numbers(y: tf.Tensor) -> tf.Tensor:
    def as_number(value: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.round(value) if value.dtype.is_floating else value, tf.int64)

    if y.shape.rank is None or y.shape.rank < 2:
        return as_number(y)
    if y.shape[-1] == 1:
        return as_number(tf.squeeze(y, -1))
    if y.shape[-1] is not None:
        return tf.argmax(tf.cast(y, tf.int32) if y.dtype == tf.bool else y, axis=-1)
    return tf.cond(
        tf.shape(y)[-1] == 1,
        lambda: as_number(y[..., 0]),
        lambda: tf.argmax(y, axis=-1, output_type=tf.int64),
    )
