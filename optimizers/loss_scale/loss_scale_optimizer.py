"""`LossScaleOptimizer`: any optimizer, behind a scaled loss."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.optimizers import (
    accumulators_of,
    build_base_optimizer,
    call_count,
    own_variables,
    trained_variables,
)
from ...compat.keras_private.serialization import save_under_keras_name
from ...compat.wrong_use import WrongUse
from ...distribute.arguments import show
from ...distribute.replicas import in_replica_context, local_copy, once_per_copy
from ...distribute.sharding.sharded_value import own_copy
from ..adoption import adopt, register_class
from ..building import ensure_built
from ..optimizer import Optimizer
from ..optimizer_checks import GradsAndVars, Pairs, require_built
from ..stages.accumulation import update_is_due
from ..stages.aggregated_gradients import after_aggregation, aggregate_alone, forget_applied
from ..stages.call_options import current_options, gradients_are_taken
from ..stages.run_stages import run_stages
from ..stages.sparse_gradients import map_values
from ..stages.user_code import if_true, write_where
from . import scale_variables
from .scale_rule import ScaleRule, make_rule, next_state

LIMITS = "dynamic"
"""Where a configuration keeps the limits of the scale: plain Keras reads this key as true or false and continues."""


class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer, Optimizer):
    """Multiplies the loss by a scale, divides the gradients by it, and adjusts the scale.

        scaled gradient = gradient of (S * loss)             no longer underflows in float16
        gradient        = sum over replicas / S              in float32
        finite check    = is all of it finite?               one answer for every replica, after the sum

    If it is not, the step is skipped: no bit of the weights, state or counts of the inner optimizer changes.
    `scale_rule.next_state` adjusts S. With `gradient_accumulation_steps` of the inner optimizer the k calls of one
    update are one step: if any of them overflows, the whole update is skipped and the scale halved once.

    It owns the scale and its counters. Aggregation, transformers, clipping and the update belong to the inner optimizer.
    `compile` wraps the optimizer of a model with the policy "mixed_float16"; in a custom loop, wrap it yourself.

    Args:
        inner_optimizer: any Keras optimizer; it is converted in place (`adopt`).
        initial_scale: the first scale, above 0.
        dynamic_growth_steps: consecutive finite steps after which the scale doubles.
        name: name of the optimizer.
        min_scale: the scale never goes below. None: 2**-14, or `initial_scale` where that is lower.
        max_scale: the scale never goes above. None: 2**127. A fixed scale: `min_scale = max_scale = initial_scale`.
        **kwargs: what Keras' class accepts for old files.

    Raises:
        ValueError: a scale is not positive, or `initial_scale` is not within the limits.
        TypeError: `inner_optimizer` is not an optimizer, or scales the loss itself.

    Source: Micikevicius et al., "Mixed Precision Training", ICLR 2018, section 3.2.

    Examples:
        >>> optimizer = unisono.mixed_precision.LossScaleOptimizer(unisono.optimizers.Adam(1e-3))
        >>> with tf.GradientTape() as tape:
        ...     loss = tf.reduce_mean((model(x) - y) ** 2)
        >>> count = optimizer.minimize(loss, model.trainable_variables, tape=tape)
    """

    def __init__(
        self,
        inner_optimizer: keras.optimizers.Optimizer,
        initial_scale: float = 2.0**15,
        dynamic_growth_steps: int = 2000,
        name: str | None = None,
        *,
        min_scale: float | None = None,
        max_scale: float | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(inner_optimizer, keras.optimizers.Optimizer):
            raise WrongUse(f"`inner_optimizer` must be a Keras optimizer, not {show(inner_optimizer)}.")
        if isinstance(inner_optimizer, keras.optimizers.LossScaleOptimizer):
            raise WrongUse("`inner_optimizer` scales the loss itself: pass the optimizer inside it.")
        initial_scale, rule = make_rule(initial_scale, dynamic_growth_steps, min_scale, max_scale)
        super().__init__(adopt(inner_optimizer), initial_scale, dynamic_growth_steps, name, **kwargs)
        self._begin(rule)

    def on_adopted(self) -> None:
        """Complete an instance of Keras' class (`adopt` calls this)."""
        self._begin(make_rule(self.initial_scale, self.dynamic_growth_steps)[1])

    def _begin(self, rule: ScaleRule) -> None:
        self.min_scale, self.max_scale = rule.min_scale, rule.max_scale
        self.inner_optimizer.is_inner = True
        scale_variables.create(self)

    @property
    def rule(self) -> ScaleRule:
        """The rule by which the scale moves."""
        return ScaleRule(self.dynamic_growth_steps, self.min_scale, self.max_scale)

    def build(self, variables: Sequence[Any]) -> None:
        """Build the inner optimizer for `variables`."""
        scale_variables.create(self)
        ensure_built(self.inner_optimizer, list(variables))
        build_base_optimizer(self, list(variables))

    @property
    def variables(self) -> list[Any]:
        """The scale with its counters, then the inner optimizer's variables."""
        return [*own_variables(self), *self.inner_optimizer.variables]

    def scale_loss(self, loss: Any) -> tf.Tensor:
        """Return `loss * scale`, of any shape; in float32 if the loss is narrower. Context: replica; inside the tape."""
        scale_variables.move_to_current_strategy(self)
        forget_applied(self)
        loss = _widen(tf.convert_to_tensor(loss))
        scale = _read_copy(self.dynamic_scale)
        scale_variables.note(self, scale)
        return loss * tf.cast(scale, loss.dtype)

    def apply_gradients(self, grads_and_vars: GradsAndVars, *args: Any, **kwargs: Any) -> Any:
        """Do as `optimizers.Optimizer.apply_gradients`, with gradients of the scaled loss, which are unscaled here.

        Return the calls that the inner optimizer has counted; a skipped one is not counted.
        """
        super().apply_gradients(grads_and_vars, *args, **kwargs)
        return call_count(self.inner_optimizer)

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Aggregate and unscale the gradients, apply them if all are finite, and move the scale.

        Args:
            grads: gradients of the scaled loss, one for each variable; dense, `tf.IndexedSlices` or None.
            trainable_variables: None: those that the optimizer was built with.

        Context: replica, or cross-replica as in `run_stages`. The finite check is appended to
        `current_step().finite_checks`.
        """
        if len(grads) == 0:
            return
        inner = self.inner_optimizer
        named = trainable_variables is not None
        variables: list[Any] = list(trainable_variables) if named else require_built(self, len(grads))
        ensure_built(self, variables)
        if gradients_are_taken(self, grads, variables):
            return
        given, options = after_aggregation(self, list(zip(grads, variables)), current_options())
        pairs = [(_widen_gradient(g), v) for g, v in given]
        scale = self._scale_of_gradients()
        accumulates = inner.gradient_accumulation_steps
        veto = _read_copy(self.overflowed) > 0 if accumulates else None
        finite = run_stages(
            inner, pairs, scale=scale, check_finite=True, veto=veto, options=options, called=False
        )
        self._write(self._close_call if accumulates else self._move, finite)

    def aggregate_gradients(self, grads_and_vars: GradsAndVars) -> Pairs:
        """Do as `optimizers.Optimizer.aggregate_gradients`, with gradients of the scaled loss: they are unscaled here."""
        scale = self._scale_of_gradients()
        return aggregate_alone(self, grads_and_vars, self.inner_optimizer, scale, _widen_gradient)

    def _scale_of_gradients(self) -> tf.Tensor:
        noted = scale_variables.find_noted_scale(self)
        return _read_copy(self.dynamic_scale) if noted is None else noted

    def _write(self, fn: Any, finite: Any) -> None:
        """Run `fn(finite)` so that each copy of the scale's variables is written once."""
        if in_replica_context():
            once_per_copy(fn)(finite)
        else:
            tf.distribute.get_strategy().run(lambda each: once_per_copy(fn)(each), args=(finite,))

    def _move(self, finite: Any, where: Any = None) -> None:
        """Move the scale after an update, if `where`, a bool scalar, is true or None. Context: replica."""
        scale_variables.write(self, next_state(scale_variables.read(self), finite, self.rule), where)

    def _close_call(self, finite: Any) -> None:
        """Finish one of the k calls of an accumulated update; at the last one the scale moves.

        A call that was not applied has counted nothing: the count is moved on here, so that the update stays due at its
        k-th call, and back to where the update began if it was skipped. `finite`, the check of this call, is false also
        if an earlier call of this update overflowed. Context: replica.
        """
        inner, steps = self.inner_optimizer, self.inner_optimizer.gradient_accumulation_steps
        calls, may_be_due = local_copy(call_count(inner)), update_is_due(inner)
        done = tf.where(finite, calls, calls + 1)
        due = tf.equal(done % steps, 0)
        skip = tf.logical_and(due, tf.logical_not(finite))
        self._move(finite, where=due)
        overflowed = local_copy(self.overflowed)
        overflowed.assign(tf.cast(tf.logical_not(tf.logical_or(due, finite)), overflowed.dtype))
        calls.assign(tf.where(skip, done - steps, done))

        def drop() -> None:
            for variable in [*accumulators_of(inner), inner.accumulated_weight]:
                if variable is not None:
                    copy = own_copy(variable)
                    copy.assign(tf.zeros_like(copy))

        if_true(may_be_due, lambda: write_where(skip, inner, trained_variables(inner), drop))

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Make the inner optimizer's last write, as in Keras."""
        self.inner_optimizer.finalize_variable_values(var_list)

    # State and configuration.

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Reverse `get_weights`."""
        own = len(own_variables(self))
        for variable, weight in zip(own_variables(self), weights):
            variable.assign(weight)
        self.inner_optimizer.set_weights(list(weights)[own:])

    def save_own_variables(self, store: Any) -> None:
        """Save the state in Keras' layout; the counters take the places of two numbers that Keras never uses."""
        inner: dict[str, Any] = {}
        self.inner_optimizer.save_own_variables(inner)
        own = scale_variables.to_keras_layout(self)
        for index, value in enumerate(own):
            store[str(index)] = value
        for key, value in inner.items():
            store[str(len(own) + int(key))] = value

    def load_own_variables(self, store: Any) -> None:
        """Load what `save_own_variables`, plain Keras or the inner optimizer alone saved; without a scale it stays."""
        values = {int(key): store[key] for key in store.keys()}  # noqa: SIM118
        own = len(scale_variables.to_keras_layout(self))
        if len(values) <= len(self.inner_optimizer.variables):
            self.inner_optimizer.load_own_variables({str(key): value for key, value in values.items()})
            return
        inner = {str(key - own): value for key, value in values.items() if key >= own}
        self.inner_optimizer.load_own_variables(inner)
        scale_variables.from_keras_layout(self, [values[index] for index in range(own)])

    def get_config(self) -> dict[str, Any]:
        """Return Keras' configuration, with the limits of the scale if they are not the defaults."""
        config = keras.optimizers.LossScaleOptimizer.get_config(self)
        _, default = make_rule(self.initial_scale, self.dynamic_growth_steps)
        if self.rule != default:
            config[LIMITS] = {"min_scale": self.min_scale, "max_scale": self.max_scale}
        return config

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Any:
        """Reverse `get_config`; plain Keras' configurations are accepted, too."""
        config = dict(config)
        if isinstance(config.get(LIMITS), dict):
            config |= config.pop(LIMITS)
        inner = keras.saving.deserialize_keras_object(
            config.pop("inner_optimizer"), custom_objects=custom_objects
        )
        return cls(inner, **config)


def _read_copy(variable: Any) -> tf.Tensor:
    return tf.identity(tf.convert_to_tensor(local_copy(variable) if in_replica_context() else variable))


def _widen(value: tf.Tensor) -> tf.Tensor:
    return tf.cast(value, tf.float32) if value.dtype in (tf.float16, tf.bfloat16) else value


def _widen_gradient(gradient: Any) -> Any:
    """Sum over replicas and divide by the scale in float32, also for float16 variables."""
    known = isinstance(gradient, tf.Tensor | tf.IndexedSlices)
    return map_values(_widen, gradient) if known else gradient


register_class(keras.optimizers.LossScaleOptimizer, LossScaleOptimizer)
save_under_keras_name(LossScaleOptimizer)
