"""Gradients of TensorFlow's sums and means that wait for no GPU where a shape is not known while tracing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops

Gradient = Callable[[Any, Any], Any]


def without_waiting(registry: Any, name: Any, original: Gradient) -> Gradient:
    """The gradient of an operation, to the bit, that does its arithmetic of shapes on the host or while tracing.

    TensorFlow does part of it on the GPU: it picks sizes of axes out of the shape there, and the host, which needs the
    result to go on, waits.

    Args:
        registry: in which the gradient was looked up.
        name: of the operation; any but a sum and a mean has its own gradient.
        original: what TensorFlow has registered.

    Source: `_SumGrad` and `_MeanGrad` in TensorFlow's `math_grad.py`.
    """
    makers = {"Sum": _of_sum, "Mean": _of_mean} if registry is ops.gradient_registry else {}
    return makers[name](original) if name in makers else original


def _of_sum(original: Gradient) -> Gradient:
    def gradient(operation: Any, grad: Any) -> Any:
        values, axes = operation.inputs[0], _known_axes(operation)
        known = values.shape.is_fully_defined() or operation.get_attr("keep_dims")
        if known or axes is None or len(axes) == values.shape.rank:
            return original(operation, grad)
        for axis in axes:
            grad = tf.expand_dims(grad, axis)
        return tf.broadcast_to(grad, tf.shape(values)), None

    return gradient


def _of_mean(original: Gradient) -> Gradient:
    """The gradient of the sum, divided by how many numbers each mean is of."""

    def gradient(operation: Any, grad: Any) -> Any:
        if operation.inputs[0].shape.is_fully_defined():
            return original(operation, grad)
        of_sum = _of_sum(ops.gradient_registry.lookup("Sum"))(operation, grad)[0]
        return tf.truediv(of_sum, tf.cast(_count(operation), of_sum.dtype)), None

    return gradient


def _known_axes(operation: Any) -> list[int] | None:
    """The axes that are reduced, from the first to the last; None: they are not known."""
    axes, rank = tf.get_static_value(operation.inputs[1]), operation.inputs[0].shape.rank
    return None if axes is None or rank is None else sorted(int(axis) % rank for axis in axes.flat)


def _count(operation: Any) -> tf.Tensor:
    """How many numbers each mean is of; int32 scalar."""
    values, axes = operation.inputs[0], _known_axes(operation)
    sizes = [None] if axes is None else [values.shape[axis] for axis in axes]
    if None not in sizes:
        return tf.reduce_prod(tf.constant(sizes, tf.int32))
    shape = tf.shape(values)  # where the values are; a GPU's kernel puts it into the host's memory
    with tf.device("CPU:0"):
        rank = tf.size(shape)
        numbers = tf.cast(operation.inputs[1], rank.dtype)
        return tf.reduce_prod(tf.gather(shape, (numbers + rank) % rank))
