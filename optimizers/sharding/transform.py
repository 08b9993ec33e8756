"""Stage 4 on shards: what treats each number by itself is done there; norms are partial sums of squares, joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ...distribute.replicas import all_reduce_sum
from ...distribute.sharding.value import own_part
from ..replica_rule import ReplicaRule
from ..stages import clipping, transformers

Pairs = list[tuple[Any, Any]]


def needs_whole_gradients(optimizer: Any) -> bool:
    """Whether a transformer or the clipping of an optimizer must see whole gradients."""
    own_clipping = type(optimizer)._clip_gradients is not ReplicaRule._clip_gradients
    return own_clipping or any(type(t) not in _ON_SHARDS for t in optimizer.gradient_transformers)


def transform_shards(optimizer: Any, pairs: Pairs) -> Pairs:
    """Stage 4 of (shard of a gradient, variable) pairs. Context: replica."""
    for transformer in optimizer.gradient_transformers:
        pairs = _ON_SHARDS[type(transformer)](transformer, pairs)
    if optimizer.clipnorm:
        return _by_norm(pairs, optimizer.clipnorm)
    if optimizer.global_clipnorm:
        return _by_global_norm(pairs, optimizer.global_clipnorm)
    return [(g, v) for g, (_, v) in zip(optimizer._clip_gradients([g for g, _ in pairs]), pairs)]


def _squared_norms(pairs: Pairs) -> tf.Tensor:
    """The sum of squares of each gradient, over all shards; in the widest of their dtypes."""
    squares = [clipping.squared_norm(g) for g, _ in pairs]
    widest = tf.float64 if any(s.dtype == tf.float64 for s in squares) else tf.float32
    return all_reduce_sum([tf.stack([tf.cast(s, widest) for s in squares])])[0]


def _by_global_norm(pairs: Pairs, limit: float) -> Pairs:
    if not pairs:
        return pairs
    factor = clipping.factor(tf.sqrt(tf.reduce_sum(_squared_norms(pairs))), limit)
    return [(g * tf.cast(factor, g.dtype), v) for g, v in pairs]


def _by_norm(pairs: Pairs, limit: float) -> Pairs:
    if not pairs:
        return pairs
    norms = tf.unstack(tf.sqrt(_squared_norms(pairs)))
    return [(g * tf.cast(clipping.factor(norm, limit), g.dtype), v) for (g, v), norm in zip(pairs, norms)]


def _decayed(piece: Any, pairs: Pairs) -> Pairs:
    def decayed(gradient: tf.Tensor, variable: Any) -> tf.Tensor:
        if len(variable.shape) < piece.min_rank:
            return gradient
        return gradient + piece.rate * tf.cast(own_part(variable), gradient.dtype)

    return [(decayed(g, v), v) for g, v in pairs]


_ON_SHARDS: dict[type, Callable[[Any, Pairs], Pairs]] = {
    transformers.ClipByGlobalNorm: lambda piece, pairs: _by_global_norm(pairs, piece.clip_norm),
    transformers.ClipByNorm: lambda piece, pairs: _by_norm(pairs, piece.clip_norm),
    transformers.ClipByValue: lambda piece, pairs: piece(pairs),
    transformers.AddDecayedWeights: _decayed,
}
"""The ready pieces that need no whole gradient, and what they do with shards."""
