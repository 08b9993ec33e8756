"""All-gather of the samples of all replicas: for losses and metrics that use the whole batch."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ..compat.tensorflow_graphs.graphs import leave_as_written
from ..compat.tensorflow_private.strategies import prepare_collectives
from ..compat.upstream_places import get_keras_mask, in_symbolic_scope, set_keras_mask
from ..compat.wrong_use import WrongUse
from .arguments import show
from .replicas import all_reduce_sum_packed, from_carrier, num_replicas, to_carrier
from .step_context import StepContext, current_step, note_collective, this_step


@leave_as_written
def gather(values: Any) -> Any:
    """Gather the samples of all replicas, for code that compares them (contrastive losses, in-batch negatives).

    Code that uses only the result computes the single-device result on every replica. It may also compare the result with
    the samples of this replica. The gradient of a sample is summed over all replicas that use it, by one more collective
    in the backward pass.

    - In `fit`, in a layer or a custom `train_step`: use the loss as it is. Replicas may hold different numbers of samples,
      or none.
    - In a custom loop with `strategy.run`: divide a loss that is the same on all replicas by
      `strategy.num_replicas_in_sync`.

    Args:
        values: nest of tensors `(batch, ...)` of this replica; scalars stay unchanged. Keras masks are gathered as well.

    Returns:
        The same nest, `(global batch, ...)` in the order of the replicas; `values` itself on one replica.

    Raises:
        RuntimeError: called outside `strategy.run`.
        TypeError: a ragged or sparse tensor of floating point numbers.
        ValueError: called in a part of a step that XLA compiles.

    Context: replica, or no strategy; while Keras infers the shapes of a layer's outputs, it returns `values`.

    Examples:
        >>> unisono.distribute.gather(tf.ones([2, 3])).shape
        TensorShape([2, 3])
    """
    if values is None or isinstance(values, str | bytes):
        raise WrongUse(f"`values` must be tensors `(samples, ...)`. Received: {show(values)}")
    if current_step() is not None:  # the program of one device
        return values
    if (context := tf.distribute.get_replica_context()) is None:
        if in_symbolic_scope():  # a model under construction has no samples
            return values
        raise WrongUse("`gather` was called outside `strategy.run`: call it inside.")
    if num_replicas() == 1:
        return values
    first = next((leaf for leaf in keras.tree.flatten(values) if leaf is not None and leaf.shape.rank), None)
    if first is None:
        return values
    counts = _all_gather(tf.shape(first)[:1])
    before = tf.reduce_sum(counts[: context.replica_id_in_sync_group])
    own = StepContext(
        context.replica_id_in_sync_group, num_replicas(), tf.shape(first)[0], tf.reduce_sum(counts), before
    )
    return keras.tree.map_structure(functools.partial(_gather, step=own, is_data=False), values)


def gather_for_step(structure: Any) -> Any:
    """Gather every tensor of a batch, which needs no gradient, over the replicas: `(samples of the global batch, ...)`.

    The samples are in the order of the replicas. None and scalars stay unchanged; Keras masks are gathered as well.

    Context: replica, inside a `StepContext` with several replicas.
    """
    return keras.tree.map_structure(functools.partial(_gather, step=this_step(), is_data=True), structure)


def _gather(value: Any, step: StepContext, is_data: bool) -> Any:
    if value is None:
        return None
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
        if value.dtype.is_floating and not is_data:
            raise WrongUse(
                f"A {type(value).__name__} of floating point numbers cannot be gathered. Received: {value}. "
                "Convert it to a dense tensor."
            )
        return join_samples(_drop_borrowed(value, step), step.samples_before, step.global_samples)
    value = tf.convert_to_tensor(value)
    if value.shape.rank == 0:
        return value
    own = _drop_borrowed(value, step)
    first = step.samples_before * (tf.shape(value)[0] // tf.maximum(step.samples, 1))
    differentiable = value.dtype.is_floating and not is_data
    everyone = _with_gradient_of_all(own, first) if differentiable else _all_gather(own)
    result = tf.ensure_shape(everyone, [None, *value.shape[1:]])
    if (mask := get_keras_mask(value)) is not None:
        set_keras_mask(result, _all_gather(_drop_borrowed(mask, step)))
    return result


def _drop_borrowed(value: Any, step: StepContext) -> Any:
    """Return the tensor without the borrowed sample of a replica that has no samples."""
    if step.alive is True:
        return value
    if isinstance(value, tf.SparseTensor):
        size = tf.concat([tf.cast([step.samples], tf.int64), value.dense_shape[1:]], 0)
        return tf.sparse.slice(value, tf.zeros_like(size), size)
    return value[: tf.where(step.alive, tf.shape(value)[0], 0)]


@tf.custom_gradient
def _with_gradient_of_all(own: tf.Tensor, first: tf.Tensor) -> Any:
    """Return the samples of all replicas; the gradient of a sample is the sum of the replicas' gradients."""

    def gradient(upstream: Any) -> Any:
        wide = tf.cast(tf.convert_to_tensor(upstream), tf.float64 if own.dtype == tf.float64 else tf.float32)
        (total,) = all_reduce_sum_packed([wide])
        return tf.cast(total[first : first + tf.shape(own)[0]], own.dtype), None

    return _all_gather(own), gradient


def gather_outputs(outputs: Any, step: StepContext) -> Any:
    """Gather a nest of dense, ragged or sparse tensors of any dtype: the samples of all replicas, in order, on each.

    Scalars, which are equal on all replicas, stay unchanged. Context: replica, with several workers.
    """
    join = functools.partial(join_samples, first=step.samples_before, samples=step.global_samples)
    return keras.tree.map_structure(join, outputs)


def _all_gather(value: tf.Tensor) -> tf.Tensor:
    """Return `value` of all replicas, concatenated along the first axis."""
    if value.dtype == tf.string:
        return _gather_strings(value)
    note_collective([value])
    context = tf.distribute.get_replica_context()
    prepare_collectives(context.strategy)
    # TensorFlow takes one tensor that all replicas pass, as in eager code, for a single value.
    part = tf.identity(to_carrier(value))
    return from_carrier(context.all_gather(part, axis=0), value.dtype)


def join_samples(value: Any, first: Any, samples: Any, concatenate: Callable[..., Any] = _all_gather) -> Any:
    """Return a dense, ragged or sparse tensor with all `samples`, of which those of this replica begin at `first`.

    `concatenate(part)` joins a dense tensor of these replicas along its first axis; by default that of all replicas.
    """
    if isinstance(value, tf.RaggedTensor):
        lengths = [concatenate(part) for part in value.nested_row_lengths()]
        values = concatenate(value.flat_values)
        return tf.RaggedTensor.from_nested_row_lengths(values, lengths, validate=False)
    if isinstance(value, tf.SparseTensor):
        moved = tf.concat([value.indices[:, :1] + tf.cast(first, tf.int64), value.indices[:, 1:]], 1)
        sizes = tf.reduce_max(concatenate(value.dense_shape[None]), 0)
        shape = tf.concat([tf.cast([samples], tf.int64), sizes[1:]], 0)
        return tf.SparseTensor(concatenate(moved), concatenate(value.values), shape)
    value = tf.convert_to_tensor(value)
    if value.shape.rank == 0:
        return value
    return tf.ensure_shape(concatenate(value), tf.TensorShape([None]).concatenate(value.shape[1:]))


def _gather_strings(value: tf.Tensor) -> tf.Tensor:
    """Gather strings, which are sent as their lengths and their bytes."""
    lengths = _all_gather(tf.strings.length(value))
    raw = tf.io.decode_raw(tf.strings.reduce_join(tf.reshape(value, [-1])), tf.uint8)
    alphabet = tf.constant([bytes([code]) for code in range(256)])
    letters = tf.gather(alphabet, _all_gather(tf.cast(raw, tf.int32)))
    words = tf.RaggedTensor.from_row_lengths(letters, tf.reshape(lengths, [-1]), validate=False)
    return tf.reshape(tf.strings.reduce_join(words, axis=-1), tf.shape(lengths))
