"""Clipping, for dense gradients and `tf.IndexedSlices` whose rows are unique."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from .sparse_gradients import map_values, times, values_of


def squared_norm(gradient: Any) -> tf.Tensor:
    """The sum of squares; scalar, in at least float32."""
    values = values_of(gradient)
    if values.dtype in (tf.float16, tf.bfloat16):
        values = tf.cast(values, tf.float32)
    return tf.reduce_sum(tf.square(values))


def global_norm(gradients: Sequence[Any]) -> tf.Tensor:
    """The Euclidean norm of all gradients as one vector; scalar in the widest of their dtypes.

    The squares are stacked, so that their order is the same on every replica: see `replicas.function_of_its_own`.
    """
    squares = [squared_norm(g) for g in gradients]
    widest = tf.float64 if any(s.dtype == tf.float64 for s in squares) else tf.float32
    return tf.sqrt(tf.reduce_sum(tf.stack([tf.cast(s, widest) for s in squares])))


def by_norm(gradient: Any, limit: float) -> Any:
    """`g * limit / max(|g|, limit)`; bitwise unchanged where `|g| <= limit`."""
    return times(gradient, factor(tf.sqrt(squared_norm(gradient)), limit))


def by_global_norm(gradients: Sequence[Any], limit: float) -> list[Any]:
    """`g * limit / max(|all g|, limit)`, the same factor for every gradient.

    Source: Pascanu et al. 2013, "On the difficulty of training recurrent neural networks", algorithm 1.
    """
    if not gradients:
        return []
    common = factor(global_norm(gradients), limit)
    return [times(g, common) for g in gradients]


def by_value(gradient: Any, limit: float) -> Any:
    """`min(max(g, -limit), limit)`, number by number."""
    return map_values(
        lambda v: tf.clip_by_value(v, tf.constant(-limit, v.dtype), tf.constant(limit, v.dtype)), gradient
    )


def factor(norm: tf.Tensor, limit: float) -> tf.Tensor:
    """`limit / max(norm, limit)`; scalar."""
    bound = tf.constant(limit, norm.dtype)
    return bound / tf.maximum(norm, bound) + (norm - norm)  # NaN, not 0, where the norm is not finite
