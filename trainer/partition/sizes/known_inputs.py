"""What is known of the inputs of an operation; `Unknown` where it is not."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from .size import Extent, Shape
from .size_arrays import Unknown, plain


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


def require(shape: Shape) -> list[Extent]:
    """Return a known shape."""
    if shape is None:
        raise Unknown
    return shape


def require_fixed(value: Any) -> np.ndarray:
    """Return the integers of an input that does not depend on the batch."""
    found = plain(value.constant)
    if found is None:
        raise Unknown
    return found


def require_axes(value: Any, rank: int) -> list[int]:
    """Return the axes that an input names, counted from 0."""
    return [int(axis) % max(rank, 1) for axis in np.ravel(require_fixed(value))]
