"""How the values of a variable from several replicas, or from several parts of a batch, are reduced to one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

MEAN = "mean"  # weighted with the samples
SUM = "sum"  # of the replicas' increments
FIRST = "first"  # the value of the first replica


def declared(variable: Any) -> str | None:
    """The reduction from the `aggregation` of a Keras variable; None where it declares none."""
    kinds = {"mean": MEAN, "sum": SUM, "only_first_replica": FIRST}
    return kinds.get(getattr(variable, "aggregation", None) or "none")


def reduce_parts(
    variable: Any,
    values: Sequence[tf.Tensor],
    shares: Sequence[Any],
    alive: Sequence[Any],
    old: tf.Tensor,
) -> tf.Tensor:
    """The value of a variable after a step whose parts were computed one by one, each from the same value.

    By the declared reduction; otherwise the mean of floating-point values and the first of others: a counter that each part
    increments is incremented once.

    Args:
        variable: the Keras variable.
        values: the value from each part.
        shares: the share of each part in the samples of the batch; scalars.
        alive: for each part whether it has samples; bools or bool scalar tensors.
        old: the value before the step.
    """
    if len(values) == 1:
        return values[0]
    dtype = values[0].dtype
    rule = declared(variable) or (MEAN if dtype.is_floating else FIRST)
    if rule == FIRST:
        return first_of(values, alive)
    if rule == SUM:
        added = [tf.where(has, value - old, tf.zeros_like(old)) for value, has in zip(values, alive)]
        return old + tf.add_n(added)
    wide = dtype if dtype.is_floating else tf.float64
    weighted = [
        tf.math.multiply_no_nan(tf.cast(v, wide), tf.cast(share, wide)) for v, share in zip(values, shares)
    ]
    mean = tf.add_n(weighted)
    return mean if dtype.is_floating else tf.cast(tf.round(mean), dtype)


def first_of(values: Sequence[tf.Tensor], alive: Sequence[Any]) -> tf.Tensor:
    """The value of the first part that has samples."""
    first = values[-1]
    for value, has in zip(reversed(values), reversed(alive)):
        first = tf.where(has, value, first)
    return first
