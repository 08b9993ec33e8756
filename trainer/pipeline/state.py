"""What a stage reads and writes besides activations: weights, random state, running averages.

While a stage computes, Keras variables are read from a mapping and writes to them are noted, so that every
micro-batch starts from the state at the beginning of the step, and a forward pass can be run again and give
the same bits. `merge` makes one value of what the micro-batches wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.layers import is_own, layers_of, own_state
from ...compat.random_state import is_random_state
from ...compat.variables import raw_value, stored_dtype
from ...distribute.step_context import StepContext
from ...distribute.write_rules import EQUAL, FIRST, MEAN, SUM, declared


class NotedWrites(keras.StatelessScope):
    """A Keras scope in which variables have the given values and assignments are noted instead of made.

    Losses that layers add are collected in `losses`.
    """

    def __init__(self, values: Iterable[tuple[Any, Any]]) -> None:
        """Takes (variable, tensor) pairs; the variables not among them keep their own values."""
        super().__init__(state_mapping=list(values), collect_losses=True, initialize_variables=False)
        self.written: dict[int, Any] = {}

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Notes one assignment (Keras calls this)."""
        variable, value = update
        self.written[id(variable)] = variable
        super().add_update((variable, tf.cast(value, stored_dtype(variable))))

    def get_current_value(self, variable: Any) -> Any:
        """The noted or given value; for other variables that of the scope around this one, or their own."""
        value = super().get_current_value(variable)
        outer = getattr(self, "original_scope", None)
        if value is None and outer is not None:
            value = outer.get_current_value(variable)
        if value is None:
            return raw_value(variable)
        return tf.stop_gradient(value) if self._is_state(variable) else value

    def _is_state(self, variable: Any) -> bool:
        """Whether it was assigned and is no weight: no gradient flows through it into what was assigned."""
        written = id(variable) in self.written
        return written and not variable.trainable and tf.as_dtype(variable.dtype).is_floating

    def writes(self) -> list[tuple[Any, tf.Tensor]]:
        """(variable, last value) pairs in the order of the first assignment."""
        return [(variable, self.state_mapping[key]) for key, variable in self.written.items()]


def mean_over_micro_batches(values: Sequence[tf.Tensor], steps: Sequence[StepContext]) -> tf.Tensor:
    """The mean weighted with each micro-batch's share of the rows; of integers the first value.

    Every micro-batch starts from the same state, so a counter that each of them advances advances once.
    """
    if len(values) == 1 or not values[0].dtype.is_floating:
        return values[0]
    shares = [step.share(values[0].dtype) for step in steps]
    return tf.add_n([tf.math.multiply_no_nan(value, share) for value, share in zip(values, shares)])


def variance_of_all(
    variances: Sequence[tf.Tensor],
    means: Sequence[tf.Tensor],
    momentum: float,
    steps: Sequence[StepContext],
) -> tf.Tensor:
    r"""The moving variance after a batch of which each micro-batch has moved a copy of its own.

    With :math:`s_q` the shares and :math:`\mu` the momentum, micro-batch q has made :math:`v_q = \mu v + (1 - \mu)
    Var_q` and :math:`m_q = \mu m + (1 - \mu) Mean_q` of the averages v and m. The variance of all rows is that
    within the micro-batches and that of their means, so

    .. math:: v' = \sum_q s_q v_q + \frac{1}{1 - \mu} \sum_q s_q (m_q - m')^2, \quad m' = \sum_q s_q m_q

    Source: GPipe's batch normalization accumulates count, sum and sum of squares over the micro-batches.
    """
    within = mean_over_micro_batches(variances, steps)
    if len(variances) == 1 or momentum >= 1.0:
        return within
    centre = mean_over_micro_batches(means, steps)
    squares = [tf.math.squared_difference(mean, centre) for mean in means]
    return within + mean_over_micro_batches(squares, steps) / (1.0 - momentum)


def normalizations(layers: Iterable[Any]) -> dict[int, tuple[Any, float]]:
    """For each BatchNormalization's moving variance, by id: its moving mean and its momentum."""
    found: dict[int, tuple[Any, float]] = {}
    for layer in layers:
        for part in layers_of(layer):
            if isinstance(part, keras.layers.BatchNormalization) and part.built and not part.renorm:
                found[id(part.moving_variance)] = (part.moving_mean, part.momentum)
    return found


def merge(
    writes: Sequence[dict[int, tuple[Any, tf.Tensor]]], steps: Sequence[StepContext], layers: Sequence[Any]
) -> list[tuple[Any, tf.Tensor]]:
    """(variable, value) pairs from each micro-batch's writes, which are by the variable's id; `layers`: that write them."""
    result, normalized = [], normalizations(layers)
    every = (part for layer in layers for part in layers_of(layer))
    own = {id(v) for layer in filter(is_own, every) for v in own_state(layer)}
    for key, (variable, _) in writes[0].items():
        values = [of_one[key][1] for of_one in writes]
        mean_of, momentum = normalized.get(key, (None, 1.0))
        if mean_of is not None and id(mean_of) in writes[0]:
            means = [of_one[id(mean_of)][1] for of_one in writes]
            result.append((variable, variance_of_all(values, means, momentum, steps)))
        else:
            result.append((variable, _joined(variable, values, steps, key in own)))
    return result


def _joined(variable: Any, values: Sequence[tf.Tensor], steps: Sequence[StepContext], own: bool) -> tf.Tensor:
    """One value of those that the micro-batches give a variable, by the rule by which replicas join theirs."""
    rule = declared(variable)
    if rule is None and own and not is_random_state(variable):
        rule = EQUAL
    if rule in (None, MEAN) or len(values) == 1:
        return mean_over_micro_batches(values, steps)
    alive, first = [step.alive for step in steps], values[-1]
    for value, has_rows in zip(values[::-1], alive[::-1]):
        first = tf.where(has_rows, value, first)
    if rule == FIRST:
        return first
    if rule == SUM:
        old = tf.convert_to_tensor(raw_value(variable))
        return old + tf.add_n([tf.where(a, v - old, tf.zeros_like(old)) for v, a in zip(values, alive)])
    equal = [tf.reduce_all(tf.equal(tf.where(a, v, first), first)) for v, a in zip(values, alive)]
    words = (
        f"The micro-batches of a pipeline give {variable.path!r} different values, and nothing says how they become one: "
        'declare it with `add_weight(aggregation="mean")`, "sum" or "only_first_replica".'
    )
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(equal), [words])]):
        return tf.identity(first)
