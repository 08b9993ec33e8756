"""Keras' hooks around an update rule, on this replica's copies: no `merge_call`, so conditionals are free."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.optimizers import averages_of, decays, state_of, trained_variables
from ...compat.keras_private.variables import direct_writes
from ...compat.tensorflow_graphs.copied_operations import TracedOnce
from ...compat.tensorflow_graphs.equal_operations import made_once
from ...distribute.replicas import in_replica_context, local_copy
from ...distribute.sharding.sharded_value import own_copy
from ..stages import clipping
from ..stages.user_code import is_of_keras, needs_no_names, write_where
from .shard_updates import updates_of


class ReplicaRule(keras.optimizers.Optimizer):
    """How an update rule reads and writes: assignments, clipping, weight decay and moving averages of one replica.

    Context: its methods run where variables are written (`distribute.replicas.once_per_copy`).
    """

    def assign(self, variable: Any, value: Any) -> None:
        """Writes this replica's copy."""
        super().assign(_copy(variable), value)

    def assign_add(self, variable: Any, value: Any) -> None:
        """Adds to this replica's copy."""
        super().assign_add(_copy(variable), value)

    def assign_sub(self, variable: Any, value: Any) -> None:
        """Subtracts from this replica's copy."""
        super().assign_sub(_copy(variable), value)

    def _backend_update_step(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any], learning_rate: Any
    ) -> None:
        on_device: dict[Any, dict[Any, Any]] = {}
        traced, state, nameless = TracedOnce(), state_of(self), needs_no_names(self)
        for gradient, variable in zip(grads, trainable_variables):
            own_state = [local_copy(each) for each in state(variable)]
            for part, copy in updates_of(self, gradient, variable, local_copy(variable)):
                with made_once(on_device.setdefault(getattr(copy, "device", None), {})):
                    if nameless and isinstance(part, tf.Tensor) and part.shape == copy.shape:
                        rule = functools.partial(self.update_step, part, copy, learning_rate)
                        traced(rule, [part, copy, *own_state])
                    else:
                        self.update_step(part, copy, learning_rate)

    def _clip_gradients(self, grads: list[Any]) -> list[Any]:
        if self.clipnorm:
            return clipping.by_norm(grads, self.clipnorm)
        if self.global_clipnorm:
            return clipping.by_global_norm(grads, self.global_clipnorm)
        if self.clipvalue:
            return clipping.by_value(grads, self.clipvalue)
        return list(grads)

    def decay_weights(self, variables: Sequence[Any]) -> None:
        """Applies weight decay; a subclass's own rule is called as Keras calls it, and its writes are made here."""
        if type(self)._apply_weight_decay is ReplicaRule._apply_weight_decay:
            self._apply_weight_decay(variables)
            return
        with keras.StatelessScope() as scope:
            self._apply_weight_decay(variables)
        for variable in variables:
            value = scope.get_current_value(variable)
            if value is not None:
                local_copy(variable).assign(value)

    def _apply_weight_decay(self, variables: Sequence[Any]) -> None:
        if self.weight_decay is None:
            return
        traced = TracedOnce(is_of_keras(self))

        def decay(copy: Any) -> None:
            rate = tf.cast(self.learning_rate, copy.dtype) * tf.cast(self.weight_decay, copy.dtype)
            copy.assign_sub(copy * rate)

        for variable in variables:
            whole = getattr(variable, "value", variable) if isinstance(variable, keras.Variable) else variable
            if decays(self, whole):
                copy = own_copy(variable)
                traced(functools.partial(decay, copy), [copy])

    def _update_model_variables_moving_average(self, trainable_variables: Sequence[Any]) -> None:
        if not self.use_ema:
            return
        started, traced = tf.not_equal(self.iterations, 0), TracedOnce()

        def move(mean: Any, copy: Any) -> None:
            momentum = tf.cast(started, copy.dtype) * self.ema_momentum
            mean.assign(momentum * mean + (1 - momentum) * copy)

        for variable, average in zip(trainable_variables, averages_of(self)):
            if average is not None:
                copy, mean = local_copy(variable), local_copy(average)
                traced(functools.partial(move, mean, copy), [mean, copy])

    def overwrite_with_average_when_due(self) -> None:
        """Every `ema_overwrite_frequency` updates the weights become their moving average."""
        if not (self.use_ema and self.ema_overwrite_frequency):
            return
        variables = trained_variables(self)
        iterations: Any = self.iterations
        due = (iterations + 1) % self.ema_overwrite_frequency == 0
        write_where(
            due, self, variables, lambda: self._overwrite_model_variables_with_average_value(variables)
        )

    def _overwrite_model_variables_with_average_value(self, trainable_variables: Sequence[Any]) -> None:
        with direct_writes():
            for variable, average in zip(trainable_variables, averages_of(self)):
                if average is not None:
                    _copy(variable).assign(_copy(average))


def _copy(variable: Any) -> Any:
    """The copy to write: this replica's in replica context, else the variable with all its copies."""
    if in_replica_context():
        return local_copy(variable)
    return variable.value if isinstance(variable, keras.Variable) else variable
