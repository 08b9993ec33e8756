"""Operations that are partitioned after rewriting them as simpler operations."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ....compat.tensorflow_graphs.one_device import graph_of
from ..labels import REPLICATED, is_sharded
from ..program import Value
from ..sizes.size_arrays import plain


def rewritten(op: tf.Operation, values: Sequence[Value]) -> Any:
    """Return the graph of a function of the inputs that is equivalent to an operation; None: it has a rule."""
    function = {"Mean": _mean, "SparseSoftmaxCrossEntropyWithLogits": _entropy_of_columns}.get(op.type)
    found = None if function is None else function(op, values)
    return None if found is None else graph_of(found, op.inputs)


def _mean(op: tf.Operation, values: Sequence[Value]) -> Callable[..., list[tf.Tensor]] | None:
    """Return a mean over data-dependent samples, as a sum and a count, because no replica knows the count."""
    (value, axes), rank = values, op.inputs[0].shape.rank
    fixed = plain(axes.constant)
    if not rank or fixed is None or not value.label.chosen or not value.dtype.is_floating:
        return None
    reduced = sorted({int(axis) % rank for axis in fixed.ravel()})
    if not is_sharded(value.label) or value.label.axis not in reduced:
        return None
    dtype = tf.float64 if value.dtype == tf.float64 else tf.float32

    def mean(x: tf.Tensor, axes: tf.Tensor) -> list[tf.Tensor]:
        count = tf.reduce_prod(tf.gather(tf.shape(x, tf.int64), reduced))
        total = tf.reduce_sum(tf.cast(x, dtype), reduced, op.get_attr("keep_dims"))
        return [tf.cast(total / tf.cast(count, dtype), x.dtype)]

    return mean


def _entropy_of_columns(op: tf.Operation, values: Sequence[Value]) -> Callable[..., list[tf.Tensor]] | None:
    """Return the cross-entropy of logits whose classes are the samples, as reductions over the classes."""
    logits, labels = values
    if not is_sharded(logits.label) or logits.label.axis != 1 or logits.label.chosen:
        return None
    if labels.label != REPLICATED and not labels.free:
        return None

    def entropy(logits: tf.Tensor, labels: tf.Tensor) -> list[tf.Tensor]:
        shifted = logits - tf.reduce_max(logits, 1, keepdims=True)
        powers = tf.exp(shifted)
        sums = tf.reduce_sum(powers, 1, keepdims=True)
        chosen = tf.one_hot(labels, tf.shape(logits)[1], True, False)
        loss = tf.math.log(sums[:, 0]) - tf.reduce_sum(tf.where(chosen, shifted, 0), 1)
        return [loss, powers / sums - tf.cast(chosen, logits.dtype)]

    return entropy
