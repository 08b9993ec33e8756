"""TensorFlow's static shapes, without what is wrong in them."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ....compat.tensorflow_graphs.graphs import scratch_graph
from ....compat.tensorflow_graphs.one_device import copy_into_graph
from .size import Extent, Shape
from .size_arrays import plain


def shape_of(shape: Any) -> Shape:
    """Return a `TensorShape` as a list."""
    return None if shape.rank is None else shape.as_list()


def find_traced_shape(op: tf.Operation, inputs: Sequence[Any], number: int = 0) -> Shape:
    """Return TensorFlow's static shape of an output, without its extents where it took another one of an input for certain.

    TensorFlow's shape of `x[:9]` has 9 samples, also for a batch of 7.
    """
    shape = shape_of(op.outputs[number].shape)
    for tensor, value in zip(op.inputs, inputs):
        given = shape_of(tensor.shape) if tensor.dtype not in (tf.resource, tf.variant) else None
        if given is not None and not _agree(given, value.shape):
            return shape and [None for _ in shape]
    return shape


def _agree(traced: list[Extent], shape: Shape) -> bool:
    return shape is not None and all(a is None or a == b for a, b in zip(traced, shape))


def infer_shape(op: tf.Operation, inputs: Sequence[Any], number: int = 0) -> Shape:
    """Return the static shape that TensorFlow finds for an output from what is known here of the inputs.

    For operations whose extents TensorFlow never takes from a number alone, as it does for `x[:9]`.
    """
    if not any(map(_knows_more, op.inputs, inputs)):
        return find_traced_shape(op, inputs, number)
    with scratch_graph():
        given = [
            tf.compat.v1.placeholder(
                value.dtype, value.shape and [n if isinstance(n, int) else None for n in value.shape]
            )
            if (known := plain(value.constant)) is None
            else tf.constant(known, value.dtype)
            for value in inputs
        ]
        return shape_of(copy_into_graph(op, given, {}).outputs[number].shape)


def _knows_more(tensor: tf.Tensor, value: Any) -> bool:
    """Return whether an extent or a number of an input is known here that TensorFlow did not know in the trace."""
    if plain(value.constant) is not None and tf.get_static_value(tensor) is None:
        return True
    traced = shape_of(tensor.shape) or [None] * len(value.shape or ())
    return any(a is None and isinstance(b, int) for a, b in zip(traced, value.shape or ()))
