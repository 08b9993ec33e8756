"""The base class of every optimizer here: Keras' update rules inside our pipeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..distribute.parameter_server_shards import register_shards, slots_beside, updates_of
from ..distribute.replicas import in_replica_context, local_copy
from . import accumulation, clipping
from .call_options import CallOptions, call_options, current_options, frozen_count, gradients_are_taken
from .gradients import compute_gradients
from .keras_internals import direct_writes
from .pipeline import run_stages

Pairs = list[tuple[Any, Any]]
Stage = Callable[[Pairs], Pairs]


class Optimizer(keras.optimizers.Optimizer):
    """A Keras optimizer whose gradients pass through the stages of `optimizers.pipeline`.

    A subclass writes `build` and `update_step`, as for Keras; both see what they see on one device. This class owns the
    way from gradients to `update_step`; the rule itself, its slots and its configuration are Keras' or the subclass's.

    Args:
        learning_rate: float, schedule or callable without arguments.
        gradient_transformers: callables that take and return a list of (gradient, variable) pairs, called in order on the
            aggregated, unscaled gradients, before clipping. None: none.
        gradient_aggregator: callable that takes and returns such a list in replica context; the default sums over replicas.
        **kwargs: those of `keras.optimizers.Optimizer`.
    """

    def __init__(
        self,
        learning_rate: Any,
        *args: Any,
        gradient_transformers: Sequence[Stage] | None = None,
        gradient_aggregator: Stage | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, *args, **kwargs)
        self.gradient_transformers = gradient_transformers
        self.gradient_aggregator = gradient_aggregator

    # The two arguments. Kept in one untracked dictionary: an adopted instance never ran our `__init__`.

    @property
    def gradient_transformers(self) -> list[Stage]:
        """Called in order on the aggregated gradients, before clipping."""
        return self._ours().get("transformers", [])

    @gradient_transformers.setter
    def gradient_transformers(self, stages: Sequence[Stage] | None) -> None:
        if callable(stages):
            stages = [stages]
        for stage in stages or ():
            _check_stage(stage, "gradient_transformers")
        self._ours()["transformers"] = list(stages or ())
        self._mark_if_extended()

    @property
    def gradient_aggregator(self) -> Stage | None:
        """Replaces the sum over replicas; None is that sum."""
        return self._ours().get("aggregator")

    @gradient_aggregator.setter
    def gradient_aggregator(self, stage: Stage | None) -> None:
        if stage is not None:
            _check_stage(stage, "gradient_aggregator")
        self._ours()["aggregator"] = stage
        self._mark_if_extended()

    def _ours(self) -> dict[str, Any]:
        return self.__dict__.setdefault("_unisono_arguments", {})

    def _mark_if_extended(self) -> None:
        """An optimizer with stages of its own cannot be opened by plain Keras and does not pretend to be Keras'."""
        extended = getattr(type(self), "_extended_class", None)
        if extended is not None and (self.gradient_transformers or self.gradient_aggregator is not None):
            object.__setattr__(self, "__class__", extended())

    # Calling it.

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(
        self,
        grads_and_vars: Iterable[tuple[Any, Any]],
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        *,
        experimental_aggregate_gradients: bool | None = None,
        weight_total: Any = None,
    ) -> Any:
        """Aggregates, unscales, transforms and applies gradients.

        Args:
            grads_and_vars: (gradient, variable) pairs of this replica; a gradient may be `tf.IndexedSlices`. Variables
                without gradient (None) are named in one warning and stay as they are.
            name: accepted for compatibility; unused.
            skip_gradients_aggregation: True if the gradients are the same on every replica already.
            experimental_aggregate_gradients: the old name of its opposite.
            weight_total: scalar, only with `gradient_accumulation_steps`: what this micro-batch's loss was divided by over
                all replicas, where micro-batches are unequal. None: the rows of the step in `fit`, else 1 for each.

        Returns:
            The number of calls so far (what Keras returns); `iterations` is the number of updates.

        Raises:
            ValueError: no gradient at all, a variable that the optimizer was not built with, or contradicting arguments.

        Context: replica; or cross-replica, where `PerReplica` gradients are each replica's own and others are the total.
        """
        del name
        if experimental_aggregate_gradients is not None:
            if skip_gradients_aggregation and experimental_aggregate_gradients:
                raise ValueError(
                    "`skip_gradients_aggregation=True` and `experimental_aggregate_gradients=True` exclude each other: "
                    "the second is the old name of the opposite. Give one of them."
                )
            skip_gradients_aggregation = not experimental_aggregate_gradients
        pairs = list(grads_and_vars)
        outer = current_options()
        options = CallOptions(
            skip_aggregation=bool(skip_gradients_aggregation) or outer.skip_aggregation,
            contributions=outer.contributions,
            weight_total=outer.weight_total if weight_total is None else weight_total,
        )
        with call_options(options):
            self.apply([pair[0] for pair in pairs], [pair[1] for pair in pairs])
        return self._iterations

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """`apply_gradients` with two lists, as in Keras.

        Args:
            grads: gradients, one for each variable.
            trainable_variables: None: those that the optimizer was built with.
        """
        if len(grads) == 0:
            return
        if trainable_variables is None:
            trainable_variables = self._built_variables(len(grads))
        if gradients_are_taken(self, grads, trainable_variables):
            return
        run_stages(self, zip(grads, trainable_variables))

    @tf.autograph.experimental.do_not_convert
    def minimize(
        self,
        loss: Any,
        var_list: Any,
        grad_loss: Any = None,
        name: str | None = None,
        tape: tf.GradientTape | None = None,
        *,
        weight_total: Any = None,
    ) -> Any:
        """Computes the gradients of `loss` and applies them.

        Args:
            loss: tensor that was computed inside `tape`, or a callable without arguments that returns one. It is scaled
                here if the optimizer scales losses: give the loss itself.
            var_list: variables, or a callable that returns them (called after the loss).
            grad_loss: the gradient of the loss; None: ones.
            name: accepted for compatibility; unused.
            tape: required with a tensor.
            weight_total: as for `apply_gradients`.

        Returns:
            What `apply_gradients` returns.

        Context: replica.
        """
        pairs = self.compute_gradients(loss, var_list, grad_loss=grad_loss, tape=tape)
        return self.apply_gradients(pairs, name=name, weight_total=weight_total)

    @tf.autograph.experimental.do_not_convert
    def compute_gradients(
        self, loss: Any, var_list: Any, grad_loss: Any = None, tape: tf.GradientTape | None = None
    ) -> Pairs:
        """The gradients of the scaled loss: what `apply_gradients` takes, and unscales. Arguments as `minimize`."""
        return compute_gradients(self, loss, var_list, grad_loss, tape)

    def _built_variables(self, count: int) -> list[Any]:
        if not self.built:
            raise ValueError(
                "`trainable_variables` is missing and the optimizer is not built: give the variables, "
                "or call `optimizer.build(trainable_variables)` first."
            )
        if count != len(self._trainable_variables):
            raise ValueError(
                f"`grads` must have one gradient for each of the {len(self._trainable_variables)} variables that the "
                f"optimizer was built with. Received: {count}"
            )
        return self._trainable_variables

    def on_adopted(self) -> None:
        """Called once on an instance that `adopt` has given this class."""
        if self.built and self.gradient_accumulation_steps:
            accumulation.create_weight(self)

    # What the pipeline asks for.

    def split(self, pairs: Pairs) -> list[tuple[Any, Pairs]]:
        """Which optimizer updates which pairs: this one all of them."""
        return [(self, pairs)]

    def build(self, variables: Sequence[Any]) -> None:
        """Creates the slots, as in Keras."""
        super().build(variables)
        register_shards(self, variables)
        if self.gradient_accumulation_steps:
            accumulation.create_weight(self)

    def add_variable_from_reference(self, reference_variable: Any, *args: Any, **kwargs: Any) -> Any:
        """A slot, as in Keras; on parameter servers it lives beside its variable."""
        with slots_beside(reference_variable):
            return super().add_variable_from_reference(reference_variable, *args, **kwargs)

    @property
    def variables(self) -> list[Any]:
        """All state, in the order in which it is saved."""
        own = super().variables
        extra = self.__dict__.get("accumulated_weight")
        return own if extra is None else [*own, extra]

    @property
    def iterations(self) -> Any:
        """Updates applied so far; with accumulation one for every `gradient_accumulation_steps` calls."""
        frozen = frozen_count(self)
        return super().iterations if frozen is None else frozen

    def accumulator_of(self, variable: Any) -> keras.Variable:
        """Where the weighted gradients of `variable` are summed; of its shape and dtype."""
        return self._accumulated_gradients[self._get_variable_index(variable)]

    @property
    def has_accumulated(self) -> dict[Any, Any]:
        """The variables that have had a gradient, by key."""
        return self._ours().setdefault("has_accumulated", {})

    @property
    def is_inner(self) -> bool:
        """Whether another optimizer holds this one, and with its own variables saves and loads this one's."""
        return self._ours().get("is_inner", False)

    @is_inner.setter
    def is_inner(self, value: bool) -> None:
        self._ours()["is_inner"] = value

    @property
    def warned_missing(self) -> list[list[str]]:
        """Lists of variables without gradient that were named in a warning."""
        return self._ours().setdefault("warned_missing", [])

    def _get_current_learning_rate(self) -> Any:
        if isinstance(self._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
            return self._learning_rate(self.iterations)
        return super()._get_current_learning_rate()

    def learning_rate_for(self, variables: Sequence[Any]) -> Any:
        """The learning rate of this update; read once where no variable needs another dtype."""
        rate = self.learning_rate
        if isinstance(rate, keras.Variable) and all(
            tf.as_dtype(v.dtype) == tf.as_dtype(rate.dtype) for v in variables
        ):
            return tf.identity(local_copy(rate))
        return rate

    # Keras' hooks, on this replica's copies.

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
        for gradient, variable in zip(grads, trainable_variables):
            for part, copy in updates_of(self, gradient, variable, local_copy(variable)):
                self.update_step(part, copy, learning_rate)

    def _clip_gradients(self, grads: list[Any]) -> list[Any]:
        if self.clipnorm:
            return [clipping.by_norm(g, self.clipnorm) for g in grads]
        if self.global_clipnorm:
            return clipping.by_global_norm(grads, self.global_clipnorm)
        if self.clipvalue:
            return [clipping.by_value(g, self.clipvalue) for g in grads]
        return list(grads)

    def decay_weights(self, variables: Sequence[Any]) -> None:
        """Applies weight decay; a subclass's own rule is called as Keras calls it, and its writes are made here."""
        if type(self)._apply_weight_decay is Optimizer._apply_weight_decay:
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
        for variable in variables:
            whole = getattr(variable, "value", variable) if isinstance(variable, keras.Variable) else variable
            if self._use_weight_decay(whole):
                copy = local_copy(variable)
                rate = tf.cast(self.learning_rate, copy.dtype) * tf.cast(self.weight_decay, copy.dtype)
                copy.assign_sub(copy * rate)

    def _update_model_variables_moving_average(self, trainable_variables: Sequence[Any]) -> None:
        if not self.use_ema:
            return
        started = tf.not_equal(self.iterations, 0)
        for variable, average in zip(trainable_variables, self._model_variables_moving_average):
            if average is not None:
                copy, mean = local_copy(variable), local_copy(average)
                momentum = tf.cast(started, copy.dtype) * self.ema_momentum
                mean.assign(momentum * mean + (1 - momentum) * copy)

    def overwrite_with_average_when_due(self) -> None:
        """Every `ema_overwrite_frequency` updates the weights become their moving average."""
        if not (self.use_ema and self.ema_overwrite_frequency):
            return

        def overwrite() -> tf.Tensor:
            self._overwrite_model_variables_with_average_value(self._trainable_variables)
            return tf.constant(True)

        due = (self.iterations + 1) % self.ema_overwrite_frequency == 0
        tf.cond(due, overwrite, lambda: tf.constant(True))

    def _overwrite_model_variables_with_average_value(self, trainable_variables: Sequence[Any]) -> None:
        with direct_writes():
            for variable, average in zip(trainable_variables, self._model_variables_moving_average):
                if average is not None:
                    _copy(variable).assign(_copy(average))

    # State and configuration.

    def get_weights(self) -> list[Any]:
        """The values of all `variables`, as NumPy arrays."""
        return [variable.numpy() for variable in self.variables]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """The reverse of `get_weights`."""
        super().set_weights(list(weights)[: len(self._variables)])
        extra = self.__dict__.get("accumulated_weight")
        if extra is not None:
            given = len(weights) > len(self._variables)
            extra.assign(weights[len(self._variables)] if given else 0.0)

    def save_own_variables(self, store: Any) -> None:
        """Saves the state; between updates in Keras' own layout."""
        extra = self.__dict__.get("accumulated_weight")
        for index, variable in enumerate(self.variables):
            value = variable.numpy()
            if variable is not extra or value != 0:
                store[str(index)] = value

    def load_own_variables(self, store: Any) -> None:
        """Loads what `save_own_variables` or plain Keras saved; of an optimizer behind a loss scale its part."""
        extra = self.__dict__.get("accumulated_weight")
        if self.is_inner and not set(store.keys()):
            return  # the file has one optimizer, and the one around this one has loaded it
        store = _without_loss_scale(store, len(self.variables) - (extra is not None))
        if extra is not None and len(store.keys()) == len(self.variables) - 1:
            store = {**{key: store[key] for key in store.keys()}, str(len(self.variables) - 1): 0.0}  # noqa: SIM118
        super().load_own_variables(store)

    def get_config(self) -> dict[str, Any]:
        """Keras' configuration, and the two arguments if they are given."""
        config = super().get_config()
        if self.gradient_transformers:
            config["gradient_transformers"] = keras.saving.serialize_keras_object(self.gradient_transformers)
        if self.gradient_aggregator is not None:
            config["gradient_aggregator"] = keras.saving.serialize_keras_object(self.gradient_aggregator)
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Any:
        """The reverse of `get_config`."""
        config = dict(config)
        for key in ("gradient_transformers", "gradient_aggregator"):
            if config.get(key) is not None:
                config[key] = keras.saving.deserialize_keras_object(
                    config[key], custom_objects=custom_objects
                )
        return super().from_config(config, custom_objects=custom_objects)

    def __reduce__(self) -> Any:
        """Copies keep the pipeline: what is saved as Keras' is adopted again."""
        from .adoption import rebuild

        return rebuild, super().__reduce__()[1]


@tf.autograph.experimental.do_not_convert
def apply_contributions(
    optimizer: Any, grads_and_vars: Iterable[tuple[Any, Any]], weight_total: Any = None
) -> Any:
    """`apply_gradients` for gradients whose plain sum over the replicas is the gradient of the global loss.

    For a step that has put each replica's share into its loss: they are not weighted again.

    Args:
        optimizer: `unisono.optimizers.Optimizer`.
        grads_and_vars: this replica's pairs.
        weight_total: scalar W of this (micro-)batch, for exact accumulation; None: the rows of the step.

    Context: replica.
    """
    with call_options(CallOptions(contributions=True, weight_total=weight_total)):
        return optimizer.apply_gradients(grads_and_vars)


def _copy(variable: Any) -> Any:
    """The copy to write: this replica's in replica context, else the variable with all its copies."""
    if in_replica_context():
        return local_copy(variable)
    return variable.value if isinstance(variable, keras.Variable) else variable


def _without_loss_scale(store: Any, count: int) -> Any:
    """The part of the inner optimizer in what a `LossScaleOptimizer` saved: all but its first four variables.

    Args:
        store: mapping from "0", "1", ... to arrays.
        count: how many variables this optimizer has, `accumulated_weight` left out.
    """
    keys = set(store.keys())
    counters = [
        np.asarray(store[key]) for key in ("0", "2", "4") if key in keys
    ]  # int64 scalars, with a scale
    if len(keys) not in (count + 4, count + 5) or any(c.ndim or c.dtype.kind != "i" for c in counters):
        return store
    return {str(int(key) - 4): store[key] for key in keys if int(key) >= 4}


def _check_stage(stage: Any, argument: str) -> None:
    if not callable(stage):
        raise ValueError(
            f"`{argument}` takes functions from (gradient, variable) pairs to such pairs. Received: {stage!r}"
        )
