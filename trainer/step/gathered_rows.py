"""The rows of all replicas, on each of them: for losses and metrics that look at the whole batch."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ...compat.layers import get_keras_mask, set_keras_mask
from ...distribute.step_context import StepContext, this_step
from .replica_slices import replica_bounds


def own_rows_of_all(structure: Any) -> Any:
    """Gathers every tensor of `structure` over the replicas, along the rows, in the order of the replicas.

    The result's rows that belong to this replica are its own tensors (a gradient flows through them); the rows of the
    others are constants. A replica without rows adds none. Keras masks are gathered along.

    Args:
        structure: nest of dense tensors `[rows, ...]`; None stays None, scalars stay as they are.

    Returns:
        The same nest with `[global_rows, ...]` in place of each tensor.

    Raises:
        TypeError: for a ragged or sparse tensor, which collectives cannot carry.

    Context: replica, inside a `StepContext` with several replicas.
    """
    return keras.tree.map_structure(_gather, structure)


def _gather(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
        raise TypeError(
            "A loss or metric of your own needs the rows of all replicas, and a "
            f"{type(value).__name__} cannot be gathered. Received: {value}. Convert it to a dense tensor, or declare the "
            "function with `unisono.rowwise` if it treats every row by itself."
        )
    value = tf.convert_to_tensor(value)
    if value.shape.rank == 0:
        return value
    mask = get_keras_mask(value)
    result = _gather_dense(value)
    if mask is not None:
        set_keras_mask(result, tf.cast(_gather_dense(tf.cast(mask, tf.int32)), tf.bool))
    return result


def _gather_dense(value: tf.Tensor) -> tf.Tensor:
    step = this_step()
    if value.dtype == tf.string:
        raise TypeError(
            "A loss or metric of your own needs the rows of all replicas, and strings cannot be gathered. Received: "
            f"{value}. Encode them as numbers, or declare the function with `unisono.rowwise`."
        )
    if not isinstance(step.rows, int) or not value.shape.is_fully_defined():
        step.shapes_vary = True
    as_number = tf.cast(value, tf.int32) if value.dtype == tf.bool else value
    per_row = tf.shape(value)[0] // tf.maximum(step.rows, 1)
    own = as_number if step.certainly_alive else as_number[: step.rows * per_row]
    everyone = tf.distribute.get_replica_context().all_gather(tf.stop_gradient(own), axis=0)
    first = _first_row(step) * per_row
    last = first + tf.shape(own)[0]
    result = tf.concat([everyone[:first], own, everyone[last:]], 0)
    result = tf.ensure_shape(result, [None, *value.shape[1:]])
    return tf.cast(result, tf.bool) if value.dtype == tf.bool else result


def _first_row(step: StepContext) -> Any:
    """The number of this replica's first row in the global batch."""
    if step.first_row is not None:
        return step.first_row
    return replica_bounds(step.global_rows, step.num_replicas, step.replica_id)[0]


def value_with_full_gradient(value: tf.Tensor) -> tf.Tensor:
    """`value`, with its gradient divided by this replica's share.

    The step weights every replica's loss with its share. A value of the global batch is the same on all replicas, and
    its gradients flow into disjoint rows, so these must be summed without that weight.
    """
    step = this_step()
    constant = tf.stop_gradient(value)
    return constant + tf.math.divide_no_nan(value - constant, step.share(value.dtype))


def rows_of_all_workers(outputs: Any, step: StepContext) -> Any:
    """The rows of all replicas, in order, on every replica.

    Args:
        outputs: nest of dense, ragged or sparse tensors `[step.rows, ...]` of any dtype.
        step: this replica's part of the batch.

    Context: replica, with several workers.
    """
    return keras.tree.map_structure(lambda value: _rows_of_all(value, step), outputs)


def _rows_of_all(value: Any, step: StepContext) -> Any:
    if isinstance(value, tf.RaggedTensor):
        lengths = [_all_gather(part) for part in value.nested_row_lengths()]
        return tf.RaggedTensor.from_nested_row_lengths(
            _all_gather(value.flat_values), lengths, validate=False
        )
    if isinstance(value, tf.SparseTensor):
        first = tf.cast(_first_row(step), tf.int64)
        moved = tf.concat([value.indices[:, :1] + first, value.indices[:, 1:]], 1)
        sizes = tf.reduce_max(_all_gather(value.dense_shape[None]), 0)
        shape = tf.concat([tf.cast([step.global_rows], tf.int64), sizes[1:]], 0)
        return tf.SparseTensor(_all_gather(moved), _all_gather(value.values), shape)
    value = tf.convert_to_tensor(value)
    result = _all_gather(value)
    return tf.ensure_shape(result, [None, *value.shape[1:]])


# What collectives carry; other numbers travel as one of these that holds them.
_CARRIED = (tf.bfloat16, tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


def _all_gather(value: tf.Tensor) -> tf.Tensor:
    """`value` of all replicas, one after the other along the first axis."""
    if value.dtype == tf.string:
        return _gather_strings(value)
    if value.dtype.is_complex:
        part = tf.float64 if value.dtype == tf.complex128 else tf.float32
        return tf.complex(*[_all_gather(tf.cast(f(value), part)) for f in (tf.math.real, tf.math.imag)])
    if value.dtype not in _CARRIED:
        wide = tf.int64 if value.dtype in (tf.uint32, tf.uint64) else tf.int32
        return tf.cast(_all_gather(tf.cast(value, wide)), value.dtype)
    return tf.distribute.get_replica_context().all_gather(tf.identity(value), axis=0)


def _gather_strings(value: tf.Tensor) -> tf.Tensor:
    """Strings travel as their lengths and their bytes."""
    lengths = _all_gather(tf.strings.length(value))
    raw = tf.io.decode_raw(tf.strings.reduce_join(tf.reshape(value, [-1])), tf.uint8)
    alphabet = tf.constant([bytes([code]) for code in range(256)])
    letters = tf.gather(alphabet, _all_gather(tf.cast(raw, tf.int32)))
    words = tf.RaggedTensor.from_row_lengths(letters, tf.reshape(lengths, [-1]), validate=False)
    return tf.reshape(tf.strings.reduce_join(words, axis=-1), tf.shape(lengths))
