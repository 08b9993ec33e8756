"""What stands in for drawn numbers in a step that is only looked at: the same each time, for the batch and its parts.

A rule is found from what a step computes on all rows and on parts of them, so a row must have the same numbers in each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

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
    before = tf.where(rows == tf.cast(step.rows, tf.int64), tf.cast(step.first_row, tf.int64), 0)
    place = tf.range(count) + before * tf.math.floordiv(count, tf.maximum(rows, 1))
    numbers = tf.math.floormod(0.5 + _GOLDEN * tf.cast(place, tf.float64), 1.0)
    return tf.cast(tf.reshape(numbers, shape), dtype)


def drawn_alike(create: Callable[..., Any]) -> Callable[..., Any]:
    """`FuncGraph._create_op_internal` in place of `create`: in a step that is looked at, what draws numbers draws these."""

    def create_or_replace(self: Any, op_type: str, inputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        if op_type in _REPLACED and only_looked_at():
            value = _drawn(op_type, inputs, kwargs.get("attrs") or {})
            if value is not None:
                return value.op
        return create(self, op_type, inputs, *args, **kwargs)

    return create_or_replace


_REPLACED = frozenset([*_UNIFORM, *_NORMAL, *_INTEGERS, _MOVES_ON])


def _drawn(op_type: str, inputs: Sequence[Any], attributes: Any) -> tf.Tensor | None:
    if op_type == _MOVES_ON:
        return tf.raw_ops.ReadVariableOp(resource=inputs[0], dtype=tf.int64)
    if op_type in _INTEGERS:
        least, most = inputs[-2:]
        place = tf.cast(spread(inputs[0], tf.float64) * tf.cast(most - least, tf.float64), least.dtype)
        return tf.minimum(least + place, most - 1)
    if "dtype" not in attributes:
        return None
    dtype = tf.as_dtype(attributes["dtype"].type)
    return spread(inputs[0], dtype) if op_type in _UNIFORM else tf.fill(inputs[0], tf.cast(0.5, dtype))
