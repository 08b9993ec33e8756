"""How one batch is read out of a chunk, inside the compiled function.

Readers are pure functions, and there is one object for each way of reading: the compiled function is kept by
it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from .rows import batch_spec, concat_rows, gather_rows, slice_rows, take_rows

Reader = Callable[[Any, Any], Any]


class _Tracing(threading.local):
    for_xla = False


_tracing = _Tracing()


@contextlib.contextmanager
def for_xla() -> Iterator[None]:
    """Readers that are traced inside read rows by number.

    XLA takes the place of a slice for a constant: it would compile the loop again for every chunk.
    """
    _tracing.for_xla = True
    try:
        yield
    finally:
        _tracing.for_xla = False


@functools.cache
def slice_reader(rows: int, layout: str = "") -> Reader:
    """Reads batch `i` as the rows from `start + i * rows` of `(arrays, start)`; `start` is an int64 scalar."""

    def read(inputs: Any, i: Any) -> Any:
        arrays, start = inputs
        first = start + tf.cast(i, tf.int64) * rows
        if _tracing.for_xla:
            return gather_rows(arrays, first + tf.range(rows, dtype=tf.int64))
        return take_rows(arrays, first, rows)

    return read


@functools.cache
def gather_reader(rows: int, layout: str = "") -> Reader:
    """Reads batch `i` of `(arrays, (order, start))` as the rows that `order` names from `start + i * rows` on.

    The order is that of the whole pass, int64 `[rows of the data]`, so its shape does not depend on the steps.
    """

    def read(inputs: Any, i: Any) -> Any:
        arrays, (order, start) = inputs
        first = start + tf.cast(i, tf.int64) * rows
        return gather_rows(arrays, tf.gather(order, first + tf.range(rows, dtype=tf.int64)))

    return read


@functools.cache
def split_reader(layout: str = "") -> Reader:
    """Reads batch `i` as the rows from `splits[i]` to `splits[i + 1] - 1` of `(arrays, splits)`."""

    def read(inputs: Any, i: Any) -> Any:
        arrays, splits = inputs
        return slice_rows(arrays, splits[i], splits[i + 1])

    return read


@functools.cache
def next_reader(layout: str = "") -> Reader:
    """Draws the next batch from a `tf.data.Iterator` that is known to have one."""
    return lambda iterator, i: iterator.get_next()


@functools.cache
def optional_reader(layout: str = "") -> Reader:
    """Draws the next batch from a `tf.data.Iterator`, if there is one."""
    return lambda iterator, i: iterator.get_next_as_optional()


@functools.cache
def joining_reader(parts: int, layout: str = "") -> Reader:
    """Draws up to `parts` elements from a `tf.data.Iterator` and joins their rows to one batch, if there is any."""

    def read(iterator: Any, i: Any) -> Any:
        first, *others = [iterator.get_next_as_optional() for _ in range(parts)]

        def joined() -> Any:
            value = first.get_value()
            for other in others:
                value = tf.cond(
                    other.has_value(),
                    lambda value=value, other=other: concat_rows([value, other.get_value()]),
                    lambda value=value: value,
                )
            return tf.experimental.Optional.from_value(value)

        empty = functools.partial(tf.experimental.Optional.empty, batch_spec(iterator.element_spec))
        return tf.cond(first.has_value(), joined, empty)

    return read


@functools.cache
def distributed_reader(finish: Any) -> Reader:
    """Draws from the iterator of a `tf.distribute.DistributedDataset`.

    Args:
        finish: makes the tuple of one batch from an element; `finish.spec` is its spec.
    """

    def read(iterator: Any, i: Any) -> Any:
        optional = iterator.get_next_as_optional()
        empty = functools.partial(tf.experimental.Optional.empty, finish.spec)

        def joined() -> Any:
            return tf.experimental.Optional.from_value(finish(optional.get_value()))

        return tf.cond(optional.has_value(), joined, empty)

    return read


def join_replicas(strategy: tf.distribute.Strategy, element: Any) -> Any:
    """A nest of per-replica values as a nest of tensors with the rows of all replicas of this worker."""
    results = strategy.experimental_local_results(element)
    return concat_rows(list(results))


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
        y: class numbers `[rows]` or `[rows, 1]` of any number dtype, or scores or one-hot `[rows, ...,
            classes]`.
        classes: the classes that have a weight.
        weights: their weights; every other class weighs 1.

    Returns:
        floatx `[rows]` (`[rows, ...]` for targets with more dimensions).
    """
    table = tf.constant(weights, keras.config.floatx())
    numbers = _class_numbers(y)
    if not classes:
        return tf.ones_like(numbers, table.dtype)
    match = tf.expand_dims(numbers, -1) == tf.constant(classes, tf.int64)
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
        lambda: as_number(tf.gather(y, 0, axis=-1)),
        lambda: tf.argmax(y, axis=-1, output_type=tf.int64),
    )
