"""Operations over data-dependent samples or divided classes, as simpler operations that can be partitioned.

Each function returns a function of the operation's inputs, or None: the operation's row holds for these inputs.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ..labels import REPLICATED, label_sharded
from ..sizes.size import is_open
from ..sizes.size_arrays import align, broadcast_axes
from .call import Call

Rewritten = Callable[..., list[tf.Tensor]] | None


def divide_mean(call: Call) -> Rewritten:
    """Return a mean over data-dependent samples, as a sum and a count, because no replica knows the count."""
    value = call.values[0]
    chosen = value.label.is_sharded and value.label.chosen and value.dtype.is_floating
    if not chosen or value.label.axis not in call.axes(1):
        return None
    reduced, dtype = sorted({*call.axes(1)}), tf.float64 if value.dtype == tf.float64 else tf.float32

    def mean(x: tf.Tensor, axes: tf.Tensor) -> list[tf.Tensor]:
        count = tf.reduce_prod(tf.gather(tf.shape(x, tf.int64), reduced))
        total = tf.reduce_sum(tf.cast(x, dtype), reduced, call.attr("keep_dims"))
        return [tf.cast(total / tf.cast(count, dtype), x.dtype)]

    return mean


def decide_gradient_axes(call: Call) -> Rewritten:
    """Return the axes of a broadcast gradient: 1 and 2 stand for extents that decide an axis for every batch.

    An axis of one sample would be summed otherwise, also where this replica's part is empty.
    """
    shapes = [call.constant(number) for number in (0, 1)]
    sums, extents = broadcast_axes(shapes), align(shapes)
    decided = [None not in pair and any(map(is_open, each)) for pair, each in zip(sums, extents)]
    if not any(decided) or not any(None in pair for pair in sums):
        return None

    def axes(*given: tf.Tensor) -> list[tf.Tensor]:
        known = []
        for number, shape in enumerate(given):
            own = slice(len(sums) - len(shapes[number]), None)
            numbers = tf.constant([2 if pair[number] is False else 1 for pair in sums[own]], shape.dtype)
            known.append(tf.where(decided[own], numbers, shape))
        return [*tf.raw_ops.BroadcastGradientArgs(s0=known[0], s1=known[1])]

    return axes


def _is_divided(value: Any, axis: int) -> bool:
    """Return whether replicas have parts of an axis of a tensor, along any axis of the mesh."""
    return any(label.is_sharded and label.axis == axis and not label.chosen for label in value.labels)


def _logs_of_shares(logits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return `logits` less their maximum along the last axis, the powers of that, and the sum of these."""
    shifted = logits - tf.reduce_max(logits, -1, keepdims=True)
    powers = tf.exp(shifted)
    return shifted, powers, tf.reduce_sum(powers, -1, keepdims=True)


def divide_softmax(call: Call) -> Rewritten:
    """Return a softmax over divided classes, or its logarithm, as reductions over the classes."""

    def softmax(logits: tf.Tensor) -> list[tf.Tensor]:
        shifted, powers, sums = _logs_of_shares(logits)
        return [powers / sums if call.type == "Softmax" else shifted - tf.math.log(sums)]

    return softmax if _is_divided(call.values[0], call.rank() - 1) else None


def divide_sparse_entropy(call: Call) -> Rewritten:
    """Return the cross-entropy of divided classes, as reductions over the classes, and lookups of those of the labels."""
    logits, labels = call.values
    along = [n for n, label in enumerate(logits.labels) if label.is_sharded and label.axis == 1]
    if not _is_divided(logits, 1) or any(labels.labels[n] != REPLICATED and not labels.free for n in along):
        return None

    def entropy(logits: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
        shifted, powers, sums = _logs_of_shares(logits)
        loss = tf.math.log(sums)[:, 0] - tf.gather(shifted, labels, axis=1, batch_dims=1)
        shares = powers / sums
        return [loss, tf.where(tf.one_hot(labels, tf.shape(logits)[1], True, False), shares - 1, shares)]

    return entropy


def divide_dense_entropy(call: Call) -> Rewritten:
    """Return the cross-entropy of divided classes with a share of each, as reductions over the classes."""

    def entropy(logits: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
        shifted, powers, sums = _logs_of_shares(logits)
        return [tf.reduce_sum(labels * (tf.math.log(sums) - shifted), 1), powers / sums - labels]

    return entropy if any(_is_divided(value, 1) for value in call.values) else None


def divide_largest(call: Call) -> Rewritten:
    """Return the position of the first largest number along a divided axis, as reductions."""
    (axis, *_), rank, dtype = call.axes(1), call.rank(), call.op.outputs[0].dtype
    if not rank or not _is_divided(call.values[0], axis) or not call.values[0].dtype.is_floating:
        return None

    def position(x: tf.Tensor, axes: tf.Tensor) -> list[tf.Tensor]:
        extent = tf.shape(x, dtype)[axis]
        places = tf.reshape(tf.range(extent), [-1, *[1] * (rank - 1 - axis)])
        largest = tf.logical_not(x < tf.reduce_max(x, axis, keepdims=True))
        return [tf.reduce_min(tf.where(largest, places, extent - 1), axis)]

    return position


def divide_ranks(call: Call) -> Rewritten:
    """Return whether each label is one of the `k` largest of divided classes, as sums over the classes."""

    def among(scores: tf.Tensor, labels: tf.Tensor, k: tf.Tensor) -> list[tf.Tensor]:
        classes = tf.shape(scores, k.dtype)[1]
        own = tf.where(tf.one_hot(labels, tf.cast(classes, tf.int32), True, False), scores, 0)
        larger = tf.cast(scores > tf.reduce_sum(own, 1, True), k.dtype)
        # No label is among numbers that are not finite.
        counted = tf.where(tf.math.is_finite(scores), larger, k)
        return [(tf.reduce_sum(counted, 1) < k) & (labels >= 0) & (labels < classes)]

    return among if _is_divided(call.values[0], 1) else None


def look_up_diagonal(call: Call) -> Rewritten:
    """Return the diagonal of a matrix of all pairs of samples, as a lookup in the row of each sample."""
    shape, divided = call.shape(), call.values[0].label == label_sharded(0)
    if len(shape) != 2 or not divided or shape[0] != shape[1] or call.fixed(1).any():
        return None
    return lambda matrix, *_: [tf.gather(matrix, tf.range(tf.shape(matrix)[0]), batch_dims=1)]
