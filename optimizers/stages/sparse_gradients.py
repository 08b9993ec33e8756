"""Gradients are dense tensors or `tf.IndexedSlices`; these functions treat both alike.

On a GPU no size may depend on which rows slices name: the host would wait for the GPU to report it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ...distribute.hardware.devices import computes_on_gpu
from ...distribute.replicas import all_reduce_sum, num_replicas
from ...distribute.sharding.collectives import gather_dense, sizes_are_known
from ...distribute.step_context import current_step
from ..optimizer_checks import Pairs

DENSEST = 16
"""Rows of a tensor for each row that slices name, up to which XLA is given the tensor: it sorts rows to name each once."""
Gradient = Any  # tf.Tensor | tf.IndexedSlices, the shape and dtype of its variable


def is_sparse(gradient: Any) -> bool:
    """Return whether a gradient is `tf.IndexedSlices`."""
    return isinstance(gradient, tf.IndexedSlices)


def map_values(fn: Callable[[tf.Tensor], tf.Tensor], gradient: Gradient) -> Gradient:
    """Apply `fn` to the gradient's numbers. With slices, `fn(0)` must be 0, and rows unique unless `fn` is linear."""
    if is_sparse(gradient):
        return tf.IndexedSlices(fn(gradient.values), gradient.indices, gradient.dense_shape)
    return fn(gradient)


def times(gradient: Gradient, factor: Any, dtype: Any = None) -> Gradient:
    """Return `gradient * factor`, first cast to `dtype` (None: its own)."""

    def multiply(values: tf.Tensor) -> tf.Tensor:
        values = tf.cast(values, dtype or values.dtype)
        return values * tf.cast(factor, values.dtype)

    return map_values(multiply, gradient)


def divide(gradient: Gradient, divisor: Any) -> Gradient:
    """Return `gradient / divisor`."""
    return map_values(lambda values: values / tf.cast(divisor, values.dtype), gradient)


def values_of(gradient: Gradient) -> tf.Tensor:
    """Return the numbers of the gradient, without the rows that slices leave out."""
    return gradient.values if is_sparse(gradient) else gradient


def dense(gradient: Gradient) -> tf.Tensor:
    """Return the gradient as one tensor of the variable's shape."""
    return tf.convert_to_tensor(gradient) if is_sparse(gradient) else gradient


def assign_add(variable: tf.Variable, gradient: Gradient) -> None:
    """Add the gradient to a variable of the same shape."""
    if is_sparse(gradient):
        variable.scatter_add(gradient)
    else:
        variable.assign_add(gradient)


def shorter(gradient: Gradient, shape: Sequence[int], ratio: int) -> Gradient:
    """Return slices as one tensor if it has at most `ratio` times the rows that they name: then it has fewer bytes."""
    named = tf.convert_to_tensor(gradient.indices).shape.num_elements() if is_sparse(gradient) else None
    if named is None or shape[0] > ratio * named:
        return gradient
    return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, shape[0])


def unique_rows(gradient: Gradient) -> Gradient:
    """Return the same gradient with each row of slices named once; a dense one is returned unchanged."""
    if not is_sparse(gradient):
        return gradient
    rows, where = tf.unique(gradient.indices)
    if _adds_in_any_order():
        order = tf.argsort(where, stable=True)
        values = _sums_of_sorted(gradient.values, order, tf.gather(where, order), tf.size(rows))
    else:
        values = tf.math.unsorted_segment_sum(gradient.values, where, tf.size(rows))
    return tf.IndexedSlices(values, rows, gradient.dense_shape)


def merge_rows(gradient: Gradient) -> Gradient:
    """Do as `unique_rows` on a GPU, without a count to wait for: spare places hold 0, and name the lowest index."""
    if not is_sparse(gradient):
        return gradient
    indices = tf.cast(gradient.indices, tf.int64)  # on the GPU; 32-bit indices are added up on the host
    order = tf.argsort(indices, stable=True)
    rows = tf.gather(indices, order)
    another = tf.concat([tf.zeros_like(rows[:1]), tf.cast(rows[1:] != rows[:-1], tf.int64)], 0)
    place = tf.cumsum(another)
    lowest = tf.zeros_like(rows) + rows[:1]
    named = tf.tensor_scatter_nd_max(lowest, place[:, None], rows)
    values = _sums_of_sorted(gradient.values, order, place, tf.size(rows))
    return tf.IndexedSlices(values, named, gradient.dense_shape)


def _sums_of_sorted(values: tf.Tensor, order: tf.Tensor, place: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Sum `values[order]` by their sorted `place`, with the same bits on every GPU.

    Source: `SegmentReduceGPU` in TensorFlow's `segment_reduction_ops_gpu.cu.h`: "The implementation is deterministic."
    """
    return tf.sparse.segment_sum(values, order, place, num_segments=places)


def _adds_in_any_order() -> bool:
    """Return whether `unsorted_segment_sum` adds in varying order, so that replicas would have different sums."""
    step = current_step()
    return num_replicas() > 1 and not (step is not None and step.in_xla) and computes_on_gpu()


def is_on_gpu() -> bool:
    """Return whether this replica's part of a graph runs on a GPU without XLA, so that the host must not wait for it."""
    step = current_step()
    return not (step is not None and step.in_xla) and not tf.executing_eagerly() and computes_on_gpu()


def fit_to_send(pairs: Pairs) -> Pairs:
    """Return gradients to sum over replicas, on GPUs of constant shape, sparse ones in the `shorter` form."""
    if not is_on_gpu():
        return pairs

    def fit(gradient: Gradient, shape: list[int]) -> Gradient:
        gradient = shorter(gradient, shape, num_replicas())
        if not is_sparse(gradient):
            return gradient
        return tf.IndexedSlices(gradient.values, gradient.indices, tf.constant(shape, tf.int32))

    return [(fit(g, list(v.shape)), v) for g, v in pairs]


def sums(gradients: Sequence[Gradient]) -> list[Gradient]:
    """Do as `all_reduce_sum`; a host that knows how many rows slices name does not wait for the GPUs to report it."""
    known = [is_sparse(g) and sizes_are_known(g.indices) for g in gradients]
    rest = iter(all_reduce_sum([g for g, apart in zip(gradients, known) if not apart]))

    def gather_slices(slices: tf.IndexedSlices) -> tf.IndexedSlices:
        values, indices = gather_dense(slices.values), gather_dense(tf.cast(slices.indices, tf.int64))
        return tf.IndexedSlices(values, indices, slices.dense_shape)

    return [gather_slices(g) if apart else next(rest) for g, apart in zip(gradients, known)]
