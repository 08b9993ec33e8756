"""Sparse gradients on GPUs: no size depends on which rows are named, so the host need not wait for a GPU to tell it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...distribute.devices import computes_on_gpu
from ...distribute.replicas import all_reduce_sum, num_replicas
from ...distribute.sharding.travel import numbers_are_known, rows_of_all
from ...distribute.step_context import current_step
from .slices import shorter

Pairs = list[tuple[Any, Any]]


def is_on_gpu() -> bool:
    """Whether this replica's part of a graph runs on a GPU, and is not compiled by XLA: the host is not to wait for it."""
    step = current_step()
    return not (step is not None and step.in_xla) and not tf.executing_eagerly() and computes_on_gpu()


def fit_to_travel(pairs: Pairs) -> Pairs:
    """On GPUs the gradients to be summed over the replicas, the sparse ones in the form that is `shorter`.

    Else the host is told what slices are of: to XLA's results it would have to ask the GPU.
    """
    if not is_on_gpu():
        return pairs
    short = [(shorter(g, list(v.shape), num_replicas()), v) for g, v in pairs]
    return [(_of_known_shape(g, list(v.shape)), v) for g, v in short]


def _of_known_shape(gradient: Any, shape: Sequence[int]) -> Any:
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    return tf.IndexedSlices(gradient.values, gradient.indices, tf.constant(shape, tf.int32))


def sums(gradients: Sequence[Any]) -> list[Any]:
    """`all_reduce_sum`; slices whose numbers of rows the host knows go to all GPUs without being asked for them."""
    known = [isinstance(g, tf.IndexedSlices) and numbers_are_known(g.indices) for g in gradients]
    rest = iter(all_reduce_sum([g for g, apart in zip(gradients, known) if not apart]))
    return [_of_all(g) if apart else next(rest) for g, apart in zip(gradients, known)]


def _of_all(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    values, indices = rows_of_all(slices.values), rows_of_all(tf.cast(slices.indices, tf.int64))
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def merged_rows(gradient: Any) -> Any:
    """The same gradient with all that is named of a row added up in one place; a dense one is returned as it is.

    There are as many places as before. The spare ones hold 0, and name the lowest row. `slices.unique_rows` leaves them out,
    and the host waits for their number.
    """
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    indices = tf.cast(gradient.indices, tf.int64)  # on the GPU; those of 32 bits are added up on the host
    order = tf.argsort(indices, stable=True)
    rows = tf.gather(indices, order)
    another = tf.concat([tf.zeros_like(rows[:1]), tf.cast(rows[1:] != rows[:-1], tf.int64)], 0)
    place = tf.cumsum(another)
    lowest = tf.zeros_like(rows) + rows[:1]
    named = tf.tensor_scatter_nd_max(lowest, place[:, None], rows)
    values = tf.math.unsorted_segment_sum(tf.gather(gradient.values, order), place, tf.size(rows))
    return tf.IndexedSlices(values, named, gradient.dense_shape)
