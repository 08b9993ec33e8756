"""Clipping, for dense gradients and `tf.IndexedSlices` whose rows are unique.

Inside `norms_over_shards` each replica has a shard of every gradient, and norms are those of the whole gradients.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ...distribute.replicas import all_reduce_sum
from ...distribute.step_context import here
from .sparse_gradients import map_values, times, values_of


def norms_over_shards(copies: Any = 1) -> contextlib.AbstractContextManager[None]:
    """Take gradients as shards inside, whose norms need one all-reduce; `copies`: replicas with the same shard, or each."""
    return here.set_to(copies_of_shards=copies)


def over_shards(partial: tf.Tensor) -> tf.Tensor:
    """Return the sum of what each replica computed from its shards; where gradients are whole, what this one computed."""
    return all_reduce_sum([partial])[0] if np.any(here.copies_of_shards) else partial


def _square_norms(gradients: Sequence[Any]) -> list[tf.Tensor]:
    """Return the sum of squares of each gradient; scalars, in at least float32."""
    values = [values_of(g) for g in gradients]
    half = (tf.float16, tf.bfloat16)
    squares = [tf.reduce_sum(tf.square(tf.cast(v, tf.float32) if v.dtype in half else v)) for v in values]
    copies = here.copies_of_shards
    if not np.any(copies):
        return squares
    vector = _stack(squares)
    return tf.unstack(over_shards(vector if copies == 1 else vector / tf.constant(copies, vector.dtype)))


def _stack(scalars: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return a vector in the widest of their dtypes."""
    widest = tf.float64 if any(s.dtype == tf.float64 for s in scalars) else tf.float32
    return tf.stack([tf.cast(s, widest) for s in scalars])


def global_norm(gradients: Sequence[Any]) -> tf.Tensor:
    """Return the norm of all gradients, in their widest dtype; stacked squares have one order on every replica."""
    return tf.sqrt(tf.reduce_sum(_stack(_square_norms(gradients))))


def by_norm(gradients: Sequence[Any], limit: float) -> list[Any]:
    """Return `g * limit / max(|g|, limit)` of each; bitwise unchanged where `|g| <= limit`."""
    norms = map(tf.sqrt, _square_norms(gradients)) if gradients else ()
    return [times(g, _factor(norm, limit)) for g, norm in zip(gradients, norms)]


def by_global_norm(gradients: Sequence[Any], limit: float) -> list[Any]:
    """Return `g * limit / max(|all g|, limit)`, with the same factor for every gradient.

    Source: Pascanu et al. 2013, "On the difficulty of training recurrent neural networks", algorithm 1.
    """
    if not gradients:
        return []
    common = _factor(global_norm(gradients), limit)
    return [times(g, common) for g in gradients]


def by_value(gradients: Sequence[Any], limit: float) -> list[Any]:
    """Return `min(max(g, -limit), limit)`, number by number."""

    def clip(values: tf.Tensor) -> tf.Tensor:
        return tf.clip_by_value(values, tf.constant(-limit, values.dtype), tf.constant(limit, values.dtype))

    return [map_values(clip, g) for g in gradients]


def _factor(norm: tf.Tensor, limit: float) -> tf.Tensor:
    """Return `limit / max(norm, limit)`; scalar."""
    bound = tf.constant(limit, norm.dtype)
    return bound / tf.maximum(norm, bound) + (norm - norm)  # NaN, not 0, where the norm is not finite
