"""Gradient accumulation: k calls make one update, equal to one call with the k batches together.

The gradient of a batch is a sum over its rows divided by its weight total W. So the gradient of the k batches together is

    g = sum_i W_i g_i / sum_i W_i

Both sums are carried; the division happens once, at the update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ...compat.optimizers import call_count, overwritten_by_gradient, track_apart, variable_key
from ...distribute.replicas import local_copy
from .calls_on_host import update_is_due
from .slices import assign_add, dense, times

Pairs = list[tuple[Any, Any]]


def create_weight(optimizer: Any) -> None:
    """Gives the optimizer `accumulated_weight`: the sum of the weight totals since the last update; float64 scalar.

    It is not among Keras' own variables of an optimizer, so that a saved state still fits plain Keras.
    """
    weight = keras.Variable(
        float(int(call_count(optimizer).numpy()) % optimizer.gradient_accumulation_steps),
        dtype="float64",
        trainable=False,
        name="accumulated_weight",
    )
    track_apart(optimizer, "accumulated_weight", weight)


def if_true(condition: Any, then: Callable[[], Any], otherwise: Callable[[], Any] | None = None) -> None:
    """A conditional of branches that write. Context: as theirs; no collective may stand in them."""

    def branch(fn: Callable[[], Any] | None) -> tf.Tensor:
        if fn is not None:
            fn()
        return tf.constant(True)

    tf.cond(condition, lambda: branch(then), lambda: branch(otherwise))


def accumulate(
    optimizer: Any,
    pairs: Pairs,
    weight_total: Any,
    update: Callable[[Pairs], None],
    branch: Callable[..., None] = if_true,
    copy_of: Callable[[Any], Any] = local_copy,
) -> None:
    """Carries the aggregated gradients of this call, with their scalar `weight_total`.

    At every k-th call it runs `update` (stages 4 and 5) on their weighted mean.

    Args:
        optimizer: with `gradient_accumulation_steps`.
        pairs: of this call.
        weight_total: scalar.
        update: takes the pairs of the means.
        branch: as `if_true`.
        copy_of: what this replica holds of an accumulator: all of it, or a shard as the gradients are.

    Context: inside of `once_per_copy`.
    """
    accumulators = {id(v): copy_of(optimizer.accumulator_of(v)) for _, v in pairs}
    for _, variable in pairs:
        optimizer.has_accumulated.setdefault(variable_key(optimizer, variable), variable)
    given = {variable_key(optimizer, v) for _, v in pairs}
    absent = [v for key, v in optimizer.has_accumulated.items() if key not in given]
    carried = local_copy(optimizer.accumulated_weight)
    weight = tf.cast(weight_total, tf.float64)
    total = carried + weight

    def joined(gradient: Any, variable: Any) -> Any:
        accumulator = accumulators[id(variable)]
        if overwritten_by_gradient(variable):
            return tf.maximum(dense(gradient), accumulator)
        own = tf.cast(dense(gradient), accumulator.dtype) * tf.cast(weight, accumulator.dtype)
        return tf.math.divide_no_nan(accumulator + own, tf.cast(total, accumulator.dtype))

    def finish() -> None:
        mean = [(joined(g, v), v) for g, v in pairs]
        for variable in absent:
            accumulator = copy_of(optimizer.accumulator_of(variable))
            mean.append((accumulator / tf.cast(total, accumulator.dtype), variable))
        update(mean)
        for _, variable in mean:
            accumulator = copy_of(optimizer.accumulator_of(variable))
            accumulator.assign(tf.zeros_like(accumulator))
        carried.assign(tf.zeros_like(total))

    def carry() -> None:
        for gradient, variable in pairs:
            accumulator = accumulators[id(variable)]
            if overwritten_by_gradient(variable):
                accumulator.assign(joined(gradient, variable))
            else:
                assign_add(accumulator, times(gradient, weight, accumulator.dtype))
        carried.assign(total)

    branch(update_is_due(optimizer), finish, carry)
