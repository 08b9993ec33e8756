"""The samples of all replicas, on each of them: for losses and metrics that look at the whole batch."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ..compat.layers import get_keras_mask, in_symbolic_scope, set_keras_mask
from .arguments import shown
from .replicas import all_reduce_sum_packed, check_not_in_xla, num_replicas
from .step_context import WEIGHTED, StepContext, current_step, this_step


def gather(values: Any) -> Any:
    """The samples of all replicas, for code that compares samples: contrastive losses, in-batch negatives, batch statistics.

    What is computed from the result alone is the same number on every replica, and is the single-device result. It may also
    be compared with the samples of this replica. The gradient of what all replicas compute of a sample flows back into it,
    for which they add it up: one more collective in the backward pass.

    - In `fit`, in a layer or a custom `train_step`: use the loss as it is. Replicas may hold different numbers of samples,
      or none.
    - In a custom loop with `strategy.run`: divide a loss that is the same on all replicas by
      `strategy.num_replicas_in_sync`.

    Args:
        values: nest of tensors `[rows, ...]` of this replica; scalars stay as they are. Keras masks are gathered along.

    Returns:
        The same nest, `[rows of the global batch, ...]` in the order of the replicas; `values` itself on one replica.

    Raises:
        RuntimeError: called outside of `strategy.run`.
        TypeError: a ragged or sparse tensor of floating point numbers.
        ValueError: in a part of a step that XLA compiles.

    Context: replica, or no strategy; where Keras finds out the shapes of a layer's outputs, it returns `values`.

    Examples:
        >>> gather(tf.ones([2, 3])).shape
        TensorShape([2, 3])
    """
    if values is None or isinstance(values, str | bytes):
        raise TypeError(
            f"`values` must be a tensor `[rows, ...]` or a nest of them. Received: {shown(values)}"
        )
    step = current_step()
    if step is not None and not step.shares:
        if step.num_replicas == 1:
            return values
        check_not_in_xla("`unisono.distribute.gather`")
        return gather_for_step(values, each_its_own=True)
    context = tf.distribute.get_replica_context()
    if context is None:
        if in_symbolic_scope():  # a layer of a model that is being made: the samples are not known
            return values
        raise RuntimeError(
            "`gather` was called outside of `strategy.run`: call it inside, where each replica has its samples."
        )
    if num_replicas() == 1:
        return values
    first = next((leaf for leaf in keras.tree.flatten(values) if leaf is not None and leaf.shape.rank), None)
    if first is None:
        return values
    counts = context.all_gather(tf.shape(first)[:1], axis=0)
    before = tf.reduce_sum(counts[: context.replica_id_in_sync_group])
    own = StepContext(
        context.replica_id_in_sync_group, num_replicas(), tf.shape(first)[0], tf.reduce_sum(counts), before
    )
    return keras.tree.map_structure(
        lambda value: _gather(value, own, tf.constant(1 / num_replicas(), tf.float64), each_its_own=True),
        values,
    )


def gather_for_step(structure: Any, is_data: bool = False, each_its_own: bool = False) -> Any:
    """Gathers every tensor of `structure` over the replicas, along the samples, in the order of the replicas.

    The result's samples that belong to this replica are its own tensors; those of the others are constants. The gradient
    that flows into the own samples is divided by this replica's share: the step weights what a replica computes with its
    share, and of a number that is the same on all replicas, each has the gradient of its own samples alone. So the replicas'
    gradients add up to that of one device, those of variables that are used next to the samples included. A replica without
    samples adds none. Keras masks are gathered along.

    Args:
        structure: nest of tensors `[rows, ...]`; None stays None, scalars stay as they are. Strings, integers, ragged and
            sparse tensors have no gradient.
        is_data: whether `structure` is data, of which nobody wants the gradient.
        each_its_own: whether each replica may compute another number from the result. Then the gradient of a sample is the
            sum of what all of them give it.

    Returns:
        The same nest with `[global_rows, ...]` instead of each tensor.

    Raises:
        TypeError: for ragged or sparse tensors of floating point numbers that are no data: collectives cannot carry their
            gradient.

    Context: replica, inside a `StepContext` with several replicas.
    """
    step = this_step()
    share = step.share(tf.float64)

    def gathered(value: Any) -> Any:
        return _gather(value, step, share, is_data, each_its_own)

    return keras.tree.map_structure(gathered, structure)


def _gather(
    value: Any, step: StepContext, share: Any, is_data: bool = False, each_its_own: bool = False
) -> Any:
    if value is None:
        return None
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
        if value.dtype.is_floating and not is_data:
            raise TypeError(
                "A custom loss or metric needs the samples of all replicas, and a "
                f"{type(value).__name__} cannot be gathered. Received: {value}. Convert it to a dense tensor, or declare "
                "the function with `unisono.rowwise` if it treats every sample by itself."
            )
        step.shapes_vary = True
        return _gather_batch(_trimmed(value, step), step)
    value = tf.convert_to_tensor(value)
    if value.shape.rank == 0:
        return value
    if not isinstance(step.rows, int) or not value.shape.is_fully_defined():
        step.shapes_vary = True
    if not value.dtype.is_floating:
        return tf.ensure_shape(_all_gather(_trimmed(value, step)), [None, *value.shape[1:]])
    mask = get_keras_mask(value)
    result = _gather_dense(value, step, share, each_its_own)
    if mask is not None:
        set_keras_mask(result, _all_gather(_trimmed(mask, step)))
    return result


def _trimmed(value: Any, step: StepContext) -> Any:
    """The tensor without the sample that a replica without samples has borrowed."""
    if step.certainly_alive:
        return value
    if isinstance(value, tf.SparseTensor):
        size = tf.concat([tf.cast([step.rows], tf.int64), value.dense_shape[1:]], 0)
        return tf.sparse.slice(value, tf.zeros_like(size), size)
    return value[: tf.where(step.alive, tf.shape(value)[0], 0)]


def _gather_dense(value: tf.Tensor, step: StepContext, share: Any, each_its_own: bool) -> tf.Tensor:
    first = step.rows_before * (tf.shape(value)[0] // tf.maximum(step.rows, 1))
    own = _trimmed(value, step)
    if each_its_own:
        weighted = bool(step.notes.get(WEIGHTED))
        result = _with_gradient_of_all(own, first, tf.ones_like(share) if weighted else share)
    else:
        own = _with_gradient_over_share(own, tf.cast(share, value.dtype))
        everyone = _all_gather(tf.stop_gradient(own))
        result = tf.concat([everyone[:first], own, everyone[first + tf.shape(own)[0] :]], 0)
    return tf.ensure_shape(result, [None, *value.shape[1:]])


@tf.custom_gradient
def _with_gradient_of_all(own: tf.Tensor, first: tf.Tensor, share: tf.Tensor) -> Any:
    """The samples of all; the gradient of one is the sum of what the replicas give it, weighted with their shares.

    It is divided by this replica's share, with which it will be weighted in turn. A share is 1 where that is done already.
    """

    def gradient(upstream: Any) -> Any:
        wide = tf.cast(tf.convert_to_tensor(upstream), tf.float64 if own.dtype == tf.float64 else tf.float32)
        weight = tf.cast(share, wide.dtype)
        (total,) = all_reduce_sum_packed([tf.math.multiply_no_nan(wide, weight)])
        mine = total[first : first + tf.shape(own)[0]]
        return tf.cast(tf.math.divide_no_nan(mine, weight), own.dtype), None, None

    return _all_gather(own), gradient


@tf.custom_gradient
def _with_gradient_over_share(value: tf.Tensor, share: tf.Tensor) -> Any:
    return tf.identity(value), lambda gradient: (tf.math.divide_no_nan(gradient, share), None)


def gather_outputs(outputs: Any, step: StepContext) -> Any:
    """The samples of all replicas, in order, on every replica.

    Args:
        outputs: nest of dense, ragged or sparse tensors `[step.rows, ...]` of any dtype.
        step: this replica's part of the batch.

    Context: replica, with several workers.
    """
    return keras.tree.map_structure(lambda value: _gather_batch(value, step), outputs)


def _gather_batch(value: Any, step: StepContext) -> Any:
    if isinstance(value, tf.RaggedTensor):
        lengths = [_all_gather(part) for part in value.nested_row_lengths()]
        return tf.RaggedTensor.from_nested_row_lengths(
            _all_gather(value.flat_values), lengths, validate=False
        )
    if isinstance(value, tf.SparseTensor):
        first = tf.cast(step.rows_before, tf.int64)
        moved = tf.concat([value.indices[:, :1] + first, value.indices[:, 1:]], 1)
        sizes = tf.reduce_max(_all_gather(value.dense_shape[None]), 0)
        shape = tf.concat([tf.cast([step.global_rows], tf.int64), sizes[1:]], 0)
        return tf.SparseTensor(_all_gather(moved), _all_gather(value.values), shape)
    value = tf.convert_to_tensor(value)
    result = _all_gather(value)
    return tf.ensure_shape(result, [None, *value.shape[1:]])


def gather_samples(value: tf.Tensor) -> tf.Tensor:
    """The tensors of all replicas, in order, one after another along axis 0. Context: replica, inside a step."""
    step = this_step()
    if not value.shape.is_fully_defined() or not isinstance(step.rows, int):
        step.shapes_vary = True
    return tf.ensure_shape(_all_gather(value), [None, *value.shape[1:]])


# What collectives carry; other numbers are sent as one of these that holds them.
_CARRIED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)


def _all_gather(value: tf.Tensor) -> tf.Tensor:
    """`value` of all replicas, one after the other along the first axis."""
    if value.dtype == tf.string:
        return _gather_strings(value)
    if value.dtype.is_complex:
        part = tf.float64 if value.dtype == tf.complex128 else tf.float32
        return tf.complex(*[_all_gather(tf.cast(f(value), part)) for f in (tf.math.real, tf.math.imag)])
    if value.dtype not in _CARRIED:
        wide = tf.int64 if value.dtype in (tf.uint32, tf.uint64) else tf.int32
        wide = tf.float32 if value.dtype.is_floating else wide
        return tf.cast(_all_gather(tf.cast(value, wide)), value.dtype)
    return tf.distribute.get_replica_context().all_gather(tf.identity(value), axis=0)


def _gather_strings(value: tf.Tensor) -> tf.Tensor:
    """Strings are sent as their lengths and their bytes."""
    lengths = _all_gather(tf.strings.length(value))
    raw = tf.io.decode_raw(tf.strings.reduce_join(tf.reshape(value, [-1])), tf.uint8)
    alphabet = tf.constant([bytes([code]) for code in range(256)])
    letters = tf.gather(alphabet, _all_gather(tf.cast(raw, tf.int32)))
    words = tf.RaggedTensor.from_row_lengths(letters, tf.reshape(lengths, [-1]), validate=False)
    return tf.reshape(tf.strings.reduce_join(words, axis=-1), tf.shape(lengths))
