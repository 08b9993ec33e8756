"""How one batch is read out of a chunk, inside the compiled function.

Readers are pure functions, and there is one object for each way of reading: the compiled function is kept by it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from .rows import batch_spec, concat_rows, gather_rows, slice_rows

Reader = Callable[[Any, Any], Any]
PartReader = Callable[[Any, Any, int, Any, Any], Any]


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


HOST = "CPU:0"


def _at(device: str) -> contextlib.AbstractContextManager[Any]:
    """Where operations that are traced inside run: beside the data, and positions on the host. XLA has one device."""
    return contextlib.nullcontext() if _tracing.for_xla else tf.device(device)


def _first_row(start: Any, i: Any, rows: int) -> Any:
    with _at(HOST):  # a GPU would be waited for
        return start + tf.cast(i, tf.int64) * rows


@functools.cache
def slice_reader(rows: int, layout: str = "", device: str = HOST) -> Reader:
    """Reads batch `i` as the rows from `start + i * rows` of `(arrays, start)`; `start` is an int64 scalar.

    Args:
        rows: of a batch.
        layout: of the arrays.
        device: where the arrays are.
    """

    def read(inputs: Any, i: Any) -> Any:
        arrays, start = inputs
        first = _first_row(start, i, rows)
        if _tracing.for_xla:
            return gather_rows(arrays, first + tf.range(rows, dtype=tf.int64))
        return slice_rows(arrays, first, first + rows, rows, device)

    return read


@functools.cache
def gather_reader(rows: int, layout: str = "", device: str = HOST) -> Reader:
    """Reads batch `i` of `(arrays, (order, start))` as the rows that `order` names from `start + i * rows` on.

    The order is that of the whole pass, int64 `[rows of the data]`, so its shape does not depend on the steps. Other
    arguments as `slice_reader`.
    """

    def read(inputs: Any, i: Any) -> Any:
        arrays, (order, start) = inputs
        first = _first_row(start, i, rows)
        if _tracing.for_xla:
            return gather_rows(arrays, tf.gather(order, first + tf.range(rows, dtype=tf.int64)))
        with _at(HOST):
            begin, size = tf.reshape(first, [1]), tf.constant([rows], tf.int64)
        with tf.device(device):
            return gather_rows(arrays, tf.slice(order, begin, size))

    return read


@functools.cache
def open_reader(layout: str, device: str, ordered: bool) -> Reader:
    """Reads batch `i` of data whose last batch is smaller; the rows of a batch are not known to the compiled function.

    `inputs` are those of `slice_reader`, or with `ordered` of `gather_reader`, but for `start`: `(start, rows, end)`, int64
    scalars; `rows` of a full batch, and `end` of the data.
    """

    def read(inputs: Any, i: Any) -> Any:
        arrays, place = inputs
        order, place = place if ordered else (None, place)
        first, last = _open_bounds(place, i)
        return _rows_between(arrays, order, first, last, device)

    return read


@functools.cache
def open_part_reader(layout: str, devices: tuple[str, ...], ordered: bool) -> PartReader:
    """`part_reader` for the inputs of `open_reader`; `first` and `last` are int32 scalar tensors."""

    def read(inputs: Any, i: Any, replica: int, first: Any, last: Any) -> Any:
        copies, place = inputs
        orders, place = place if ordered else (None, place)
        with tf.device(HOST):
            begin, _ = _open_bounds(place, i)
            first, last = begin + tf.cast(first, tf.int64), begin + tf.cast(last, tf.int64)
        order = None if orders is None else orders[replica]
        return _rows_between(copies[replica], order, first, last, devices[replica])

    return read


def _open_bounds(place: Any, i: Any) -> tuple[Any, Any]:
    start, rows, end = place
    with _at(HOST):
        first = start + tf.cast(i, tf.int64) * rows
        return first, tf.minimum(first + rows, end)


def _rows_between(arrays: Any, order: Any, first: Any, last: Any, device: str) -> Any:
    if order is None:
        return slice_rows(arrays, first, last, device=device)
    with _at(HOST):
        begin, size = tf.reshape(first, [1]), tf.reshape(last - first, [1])
    with tf.device(device):
        return gather_rows(arrays, tf.slice(order, begin, size))


@functools.cache
def part_reader(rows: int, layout: str, devices: tuple[str, ...], ordered: bool) -> PartReader:
    """Reads rows `first` to `last - 1` of batch `i` on the device of replica number `replica` of this process.

    For data of which every one of `devices` holds a copy: `inputs` are those of `slice_reader`, or with `ordered` of
    `gather_reader`, but with a list of arrays (and of orders), one for each device. `rows`: of the global batch.
    """

    def read(inputs: Any, i: Any, replica: int, first: int, last: int) -> Any:
        copies, place = inputs
        orders, start = place if ordered else (None, place)
        with tf.device(HOST):
            begin = _first_row(start, i, rows) + first
            place, size = tf.reshape(begin, [1]), tf.constant([last - first], tf.int64)
        if orders is None:
            return slice_rows(copies[replica], begin, begin + (last - first), last - first, devices[replica])
        with tf.device(devices[replica]):
            return gather_rows(copies[replica], tf.slice(orders[replica], place, size))

    return read


@functools.cache
def first_copy(reader: Reader, ordered: bool) -> Reader:
    """Reads whole batches from the first of several copies of the data; see `part_reader`."""

    def read(inputs: Any, i: Any) -> Any:
        copies, place = inputs
        return reader((copies[0], (place[0][0], place[1]) if ordered else place), i)

    return read


@functools.cache
def split_reader(layout: str = "") -> Reader:
    """Reads batch `i` as the rows from `splits[i]` to `splits[i + 1] - 1` of `(arrays, splits)`."""

    def read(inputs: Any, i: Any) -> Any:
        arrays, splits = inputs
        with _at(HOST):
            return slice_rows(arrays, splits[i], splits[i + 1])

    return read


@functools.cache
def whole_reader(layout: str = "") -> Reader:
    """The arrays of `(arrays, anything)` as they are: one batch."""
    return lambda inputs, i: inputs[0]


@functools.cache
def next_reader(layout: str = "") -> Reader:
    """Draws the next batch from a `tf.data.Iterator` that is known to have one."""
    return lambda iterator, i: iterator.get_next()


@functools.cache
def optional_reader(layout: str = "") -> Reader:
    """Draws the next batch from a `tf.data.Iterator`, if there is one."""
    return lambda iterator, i: iterator.get_next_as_optional()


def map_optional(fn: Callable[[Any], Any], optional: Any, spec: Any) -> Any:
    """`fn(value)` of a `tf.experimental.Optional`, if it has one; `spec` is the nest of `tf.TypeSpec` of the result."""
    return tf.cond(
        optional.has_value(),
        lambda: tf.experimental.Optional.from_value(fn(optional.get_value())),
        lambda: tf.experimental.Optional.empty(spec),
    )


@functools.cache
def joining_reader(parts: int, layout: str = "") -> Reader:
    """Draws up to `parts` elements from a `tf.data.Iterator` and joins their rows to one batch, if there is any."""

    def read(iterator: Any, i: Any) -> Any:
        first, *others = [iterator.get_next_as_optional() for _ in range(parts)]

        def joined(value: Any) -> Any:
            for other in others:
                value = tf.cond(
                    other.has_value(),
                    lambda value=value, other=other: concat_rows([value, other.get_value()]),
                    lambda value=value: value,
                )
            return value

        return map_optional(joined, first, batch_spec(iterator.element_spec))

    return read
