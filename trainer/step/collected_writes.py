"""The writes of a step: collected while it is computed, made together at its end, or not at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.variables import raw_value
from ...distribute.replicas import (
    all_reduce_sum_packed,
    local_copy,
    num_replicas,
    once_per_copy,
    shares_variables,
)
from ...distribute.step_context import StepContext


class CollectedWrites(keras.StatelessScope):
    """A scope in which an assignment to a Keras variable is noted instead of made; reads see the noted value."""

    def __init__(self) -> None:
        super().__init__(collect_losses=True)
        self.variables: dict[int, keras.Variable] = {}

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Notes one assignment (Keras calls this)."""
        variable, value = update
        value = tf.cast(value, variable.dtype)
        if variable.trainable and value.dtype.is_floating and raw_value(variable) is not None:
            value = _beginning_of_gradients(value, tf.convert_to_tensor(raw_value(variable)))
        self.variables[id(variable)] = variable
        super().add_update((variable, value))

    def get_current_value(self, variable: keras.Variable) -> Any:
        """The noted value, or the variable's own (Keras calls this)."""
        noted = super().get_current_value(variable)
        return raw_value(variable) if noted is None else noted

    def items(self) -> list[tuple[keras.Variable, tf.Tensor]]:
        """(variable, last value) pairs, in the order of the first assignment."""
        return [(variable, self.state_mapping[key]) for key, variable in self.variables.items()]

    def forget(self, variables: Iterable[Any]) -> None:
        """Drops what was noted for `variables`: they have been written since."""
        for variable in variables:
            self.variables.pop(id(variable), None)
            self.state_mapping.pop(id(variable), None)


@tf.custom_gradient
def _beginning_of_gradients(value: tf.Tensor, before: tf.Tensor) -> Any:
    """`value`, on every tape that watches the variable whose value was `before`; no gradient flows further back.

    A layer may assign a weight while it computes (spectral normalization does) and then use it. The gradient of the weight
    is the one of what was assigned.
    """
    return tf.identity(value), lambda gradient: (None, None)


def make_writes(
    writes: Sequence[tuple[keras.Variable, tf.Tensor]],
    step: StepContext,
    local_metrics: set[int],
    gathered_metrics: set[int],
) -> None:
    """Writes each variable's new value, on every replica, if the step was not skipped.

    Three kinds of variables are told apart:

    - metrics that count their own rows: this replica's copy, if it has rows. They are summed when they are read.
    - metrics that saw all rows: the first replica's copy alone.
    - everything else: one value for all replicas. Floating-point values become the mean weighted with each replica's
      share of the rows (BatchNormalization's averages); integers (counters, random state) are equal already, because a
      replica without rows counts too.

    Args:
        writes: (variable, value) pairs of this replica.
        step: the step of this replica; `verdicts` say whether it was skipped.
        local_metrics: ids of the variables of the first kind.
        gathered_metrics: ids of those of the second kind.

    Context: replica.
    """
    if not writes:
        return
    applied = step.applied
    old = {id(variable): local_copy(variable) for variable, _ in writes}
    new: list[tf.Tensor] = []
    averages: list[int] = []
    sums: list[int] = []
    for index, (variable, value) in enumerate(writes):
        kind_local, kind_gathered = id(variable) in local_metrics, id(variable) in gathered_metrics
        if kind_local and not step.certainly_alive and step.num_replicas > 1:
            value = tf.where(step.alive, value, old[id(variable)])
        elif kind_gathered and step.num_replicas > 1 and not shares_variables():
            value = value if _is_first(step) else tf.identity(old[id(variable)])
        elif not kind_local and not kind_gathered and value.dtype.is_floating:
            averages.append(index)
        if kind_local and shares_variables():
            sums.append(index)
        new.append(value)
    if num_replicas() > 1 and averages:
        weighted = [tf.math.multiply_no_nan(new[i], step.share(new[i].dtype)) for i in averages]
        for i, mean in zip(averages, all_reduce_sum_packed(weighted)):
            new[i] = mean
    if num_replicas() > 1 and sums:
        added = [new[i] - tf.identity(old[id(writes[i][0])]) for i in sums]
        for i, total in zip(sums, all_reduce_sum_packed(added)):
            new[i] = old[id(writes[i][0])] + total

    def write(values: list[tf.Tensor], applied: tf.Tensor | None) -> None:
        for (variable, _), value in zip(writes, values):
            copy = old[id(variable)]
            copy.assign(value if applied is None else tf.where(applied, value, copy))

    once_per_copy(write)(new, applied)


def _is_first(step: StepContext) -> bool:
    return isinstance(step.replica_id, int) and step.replica_id == 0
