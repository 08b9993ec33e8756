"""How a tensor is cut into shards: flat, into one shard of equal size for each replica, the last ones padded with zeros."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..replicas import num_replicas, replica_id


def shard_size(numbers: int, replicas: int) -> int:
    """The numbers of one shard: `ceil(numbers / replicas)`."""
    return -(-numbers // replicas)


def rows_of_shards(value: tf.Tensor, replicas: int) -> tf.Tensor:
    """`value`, of a known shape, as `[replicas, shard_size]`: row r is the shard of replica r."""
    numbers = value.shape.num_elements()
    size = shard_size(numbers, replicas)
    flat = tf.reshape(value, [-1])
    if size * replicas > numbers:
        flat = tf.pad(flat, [[0, size * replicas - numbers]])
    return tf.reshape(flat, [replicas, size])


def own_shard(value: Any, shape: Sequence[int] | None = None) -> tf.Tensor:
    """This replica's shard of a tensor or of `tf.IndexedSlices` with unique rows: flat, of a static size.

    Args:
        value: of a known shape, if `shape` is not given.
        shape: that of the variable, which a gradient has; its own need not be known.

    Context: replica.
    """
    if isinstance(value, tf.IndexedSlices):
        return _shard_of_slices(value, list(value.shape if shape is None else shape))
    value = tf.convert_to_tensor(value)
    value = value if shape is None else tf.ensure_shape(value, shape)
    numbers = value.shape.num_elements()
    size = shard_size(numbers, num_replicas())
    flat, begin = tf.reshape(value, [-1]), replica_id() * size
    if size * num_replicas() == numbers:
        return tf.ensure_shape(tf.slice(flat, [begin], [size]), [size])
    begin = tf.minimum(begin, numbers)
    part = flat[begin : tf.minimum(begin + size, numbers)]
    return tf.ensure_shape(tf.pad(part, [[0, size - tf.size(part)]]), [size])


def whole(flat: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """The reverse: all shards one after the other, in the shape of what was cut."""
    numbers = int(np.prod(shape, dtype=np.int64))
    return tf.reshape(flat[:numbers], shape)


def _shard_of_slices(slices: tf.IndexedSlices, shape: Sequence[int]) -> tf.Tensor:
    """The shard of what slices stand for; only the rows that reach into the shard become dense."""
    rows, width = int(shape[0]), int(np.prod(shape[1:], dtype=np.int64))
    size = shard_size(rows * width, num_replicas())
    begin = tf.cast(replica_id(), tf.int64) * size
    first = begin // width
    count = min(rows, -(-size // width) + 1)
    places = tf.cast(slices.indices, tf.int64) - first
    inside = tf.logical_and(places >= 0, places < count)
    values = tf.reshape(slices.values, [-1, width])
    dense = tf.math.unsorted_segment_sum(values, tf.where(inside, places, -1), count)
    skipped = begin - first * width
    flat = tf.pad(tf.reshape(dense, [-1]), [[0, size]])
    return tf.ensure_shape(tf.slice(flat, [skipped], [size]), [size])
