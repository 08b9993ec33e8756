"""Small operations on the tensors that are sent between stages: dense, ragged or sparse, with their Keras masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...compat.keras_private.layers import get_keras_mask, set_keras_mask
from ...distribute.step_context import StepContext


def flatten(value: Any) -> list[Any]:
    """The dense parts of a nest of tensors, without Nones."""
    flat = tf.nest.flatten(value, expand_composites=True)
    return [tensor for tensor in flat if tensor is not None]


def identity(value: Any) -> Any:
    """A copy on the current device of a tensor and its Keras mask; None stays None."""
    if value is None:
        return None
    copy = tf.nest.map_structure(tf.identity, value, expand_composites=True)
    mask = get_keras_mask(value)
    if mask is not None:
        set_keras_mask(copy, tf.identity(mask))
    return copy


def watch(tape: tf.GradientTape | None, value: Any) -> list[tf.Tensor]:
    """Lets the tape watch the floating-point parts of a value, and returns them."""
    parts = [t for t in flatten(value) if t.dtype.is_floating or t.dtype.is_complex]
    if tape is not None:
        tape.watch(parts)
    return parts


def cotangents_of(arrived: Sequence[tuple[Any, list[list[Any]]]]) -> tuple[list[Any], list[Any]]:
    """The parts of a stage's outputs that have a cotangent, and their cotangents: sums over all users.

    Args:
        arrived: for each output its value and, for each of its users, the cotangents of the value's parts.
    """
    targets, cotangents = [], []
    for value, from_users in arrived:
        for index, part in enumerate(watch(None, value)):
            given = [parts[index] for parts in from_users if parts[index] is not None]
            if given:
                targets.append(part)
                cotangents.append(given[0] if len(given) == 1 else tf.add_n(given))
    return targets, cotangents


def add_gradients(total: Any, gradient: Any) -> Any:
    """`total + gradient`; None counts as 0. Two `tf.IndexedSlices` stay sparse and are concatenated."""
    if total is None or gradient is None:
        return gradient if total is None else total
    if isinstance(total, tf.IndexedSlices) and isinstance(gradient, tf.IndexedSlices):
        values = tf.concat([total.values, gradient.values], 0)
        return tf.IndexedSlices(values, tf.concat([total.indices, gradient.indices], 0), total.dense_shape)
    return tf.convert_to_tensor(total) + tf.convert_to_tensor(gradient)


def zero_unless_alive(step: StepContext, gradient: Any) -> Any:
    """The gradient of a micro-batch; zeros for an empty one, regardless of the computed value."""
    if gradient is None or step.certainly_alive:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.where(step.alive, gradient.values, tf.zeros_like(gradient.values))
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return tf.where(step.alive, gradient, tf.zeros_like(gradient))
