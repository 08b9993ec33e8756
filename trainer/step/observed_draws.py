"""What stands in for drawn numbers in a step that is only looked at: the same each time, for the batch and its parts.

A rule is found from what a step computes on all rows and on parts of them, so a row must have the same numbers in each.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ...compat.edges import read_instead
from ...distribute.step_context import current_step, this_step

_GOLDEN = 0.6180339887498949  # its multiples are spread evenly between whole numbers
_UNIFORM = ("RandomUniform", "StatelessRandomUniform", "StatelessRandomUniformV2")
_NORMAL = (
    "RandomStandardNormal",
    "StatelessRandomNormal",
    "StatelessRandomNormalV2",
    "StatelessTruncatedNormal",
    "StatelessTruncatedNormalV2",
    "TruncatedNormal",
)
_INTEGERS = ("RandomUniformInt", "StatelessRandomUniformInt", "StatelessRandomUniformIntV2")
_MOVES_ON = "RngReadAndSkip"  # of a `tf.random.Generator`: returns its state, and writes the next


def only_looked_at() -> bool:
    """Whether a step is traced to find its rules."""
    step = current_step()
    return step is not None and step.observer is not None


def spread(shape: Any, dtype: Any) -> tf.Tensor:
    """Numbers from 0 to 1 that differ from place to place; those of a row are the same in the batch and in a part of it."""
    step, sizes = this_step(), tf.cast(tf.reshape(tf.convert_to_tensor(shape), [-1]), tf.int64)
    count = tf.reduce_prod(sizes)
    rows = tf.concat([sizes, [1]], 0)[0]
    before = tf.where(rows == tf.cast(step.rows, tf.int64), tf.cast(step.rows_before, tf.int64), 0)
    place = tf.range(count) + before * tf.math.floordiv(count, tf.maximum(rows, 1))
    numbers = tf.math.floormod(0.5 + _GOLDEN * tf.cast(place, tf.float64), 1.0)
    return tf.cast(tf.reshape(numbers, shape), dtype)


def draw_alike(graph: Any) -> None:
    """What operations of TensorFlow draw in this graph of a step that is looked at is what stands in for it.

    Context: the step, at the end of its trace; functions, loops and branches of the graph stay as they are.
    """
    for operation in graph.get_operations():
        if operation.type in _REPLACED:
            drawn = operation.outputs[0]
            readers, value = drawn.consumers(), _drawn(operation)
            for reader in readers:
                read_instead(reader, drawn, value)


_REPLACED = frozenset([*_UNIFORM, *_NORMAL, *_INTEGERS, _MOVES_ON])


def _drawn(operation: Any) -> tf.Tensor:
    inputs, dtype = list(operation.inputs), operation.outputs[0].dtype
    if operation.type == _MOVES_ON:
        return tf.raw_ops.ReadVariableOp(resource=inputs[0], dtype=dtype)
    if operation.type in _INTEGERS:
        least, most = inputs[-2:]
        place = tf.cast(spread(inputs[0], tf.float64) * tf.cast(most - least, tf.float64), dtype)
        return tf.minimum(least + place, most - 1)
    return spread(inputs[0], dtype) if operation.type in _UNIFORM else tf.fill(inputs[0], tf.cast(0.5, dtype))
