"""The base class of every optimizer here: Keras' update rules behind our stages."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ..compat.keras_private.optimizers import call_count
from ..compat.keras_private.variables import as_number
from ..compat.wrong_use import WrongUse
from ..distribute.moved_variables import move_into_scope, prepare_variables
from ..distribute.parameter_servers.shards import colocate_creation, gradient
from ..distribute.sharding.row_sharding import create_in_rows
from . import optimizer_checks
from .adoption import register_class
from .optimizer_checks import GradsAndVars, Pairs
from .saved_state import SavedState
from .stages import accumulation
from .stages.aggregated_gradients import after_aggregation, aggregate_alone
from .stages.call_options import CallOptions, call_options, current_options, gradients_are_taken, read_count
from .stages.run_stages import run_stages
from .update_rules.parts import create_as_shards
from .update_rules.replica_rule import ReplicaRule, register_shards

Stage = Callable[[Pairs], Pairs]


class Optimizer(SavedState, ReplicaRule):
    """A Keras optimizer whose gradients pass through the stages of `optimizers.stages`.

    A subclass writes `build` and `update_step`, as for Keras, which get the same arguments as on one device. This class owns
    the stages between gradients and `update_step`; the rule, its state and its configuration are Keras' or the subclass's.

    Args:
        learning_rate: float, schedule or callable without arguments.
        gradient_transformers: callables that take and return a list of (gradient, variable) pairs, called in order on the
            aggregated, unscaled gradients, before clipping. None: none.
        gradient_aggregator: callable that takes and returns such a list in replica context; the default sums over replicas.
        **kwargs: those of `keras.optimizers.Optimizer`.

    Examples:
        >>> halve = lambda pairs: [(gradient / 2, variable) for gradient, variable in pairs]
        >>> optimizer = unisono.optimizers.SGD(0.1, gradient_transformers=[halve])
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
        prepare_variables()
        self.gradient_transformers = gradient_transformers
        self.gradient_aggregator = gradient_aggregator

    # The two arguments, past TensorFlow's tracking.

    @property
    def gradient_transformers(self) -> list[Stage]:
        """Called in order on the aggregated gradients, before clipping."""
        return self.__dict__.get("_transformers", [])

    @gradient_transformers.setter
    def gradient_transformers(self, stages: Sequence[Stage] | None) -> None:
        self.__dict__["_transformers"] = optimizer_checks.check_stages(stages, "gradient_transformers")
        self._mark_if_extended()

    @property
    def gradient_aggregator(self) -> Stage | None:
        """Replaces the sum over replicas; None is that sum."""
        return self.__dict__.get("_aggregator")

    @gradient_aggregator.setter
    def gradient_aggregator(self, stage: Stage | None) -> None:
        if stage is not None:
            optimizer_checks.check_stage(stage, "gradient_aggregator")
        self.__dict__["_aggregator"] = stage
        self._mark_if_extended()

    def _mark_if_extended(self) -> None:
        """Save an optimizer with custom stages as ours, because plain Keras cannot open it."""
        extended = getattr(type(self), "_unisono_extended_class", None)
        if extended is not None and (self.gradient_transformers or self.gradient_aggregator is not None):
            object.__setattr__(self, "__class__", extended())

    # Calling it.

    @tf.autograph.experimental.do_not_convert
    def apply_gradients(
        self,
        grads_and_vars: GradsAndVars,
        name: str | None = None,
        skip_gradients_aggregation: bool = False,
        *,
        experimental_aggregate_gradients: bool | None = None,
        weight_total: Any = None,
    ) -> Any:
        """Aggregate, unscale, transform and apply gradients.

        Args:
            grads_and_vars: (gradient, variable) pairs of this replica; a gradient may be `tf.IndexedSlices`. Variables
                without gradient (None) are listed in one warning and not changed.
            name: accepted for compatibility; unused.
            skip_gradients_aggregation: True if the gradients are the same on every replica, as from `aggregate_gradients`.
            experimental_aggregate_gradients: the old argument with the opposite meaning.
            weight_total: scalar, only with `gradient_accumulation_steps`: what this micro-batch's loss was divided by over
                all replicas, where micro-batches are unequal. None: the samples of the step in `fit`, else 1 for each.

        Returns:
            The number of calls so far (what Keras returns); `iterations` is the number of updates.

        Raises:
            ValueError: no gradient at all, a variable that the optimizer was not built with, or contradicting arguments.

        Context: replica; or cross-replica, where `PerReplica` gradients are each replica's own and others are the total.
        """
        del name
        pairs = optimizer_checks.check_pairs(grads_and_vars)
        outer = current_options()
        skip = optimizer_checks.skips_aggregation(
            skip_gradients_aggregation, experimental_aggregate_gradients
        )
        options = CallOptions(
            skip_aggregation=skip or outer.skip_aggregation,
            weight_total=outer.weight_total if weight_total is None else weight_total,
            update=outer.update,
        )
        with call_options(options):
            self.apply([pair[0] for pair in pairs], [pair[1] for pair in pairs])
        return call_count(self)

    @tf.autograph.experimental.do_not_convert
    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Call `apply_gradients` with two lists, as in Keras.

        Args:
            grads: gradients, one for each variable.
            trainable_variables: None: those that the optimizer was built with.
        """
        if len(grads) == 0:
            return
        if trainable_variables is None:
            trainable_variables = optimizer_checks.require_built(self, len(grads))
        pairs, options = list(zip(grads, trainable_variables)), current_options()
        if options.update is not None:
            options.update(self, pairs)
            return
        if gradients_are_taken(self, grads, trainable_variables):
            return
        pairs, options = after_aggregation(self, pairs, options)
        run_stages(self, pairs, options=options)

    @tf.autograph.experimental.do_not_convert
    def aggregate_gradients(self, grads_and_vars: GradsAndVars) -> Pairs:
        """Return the gradients of the global batch, the same on every replica: aggregated and unscaled, not yet applied.

            pairs = optimizer.aggregate_gradients(zip(gradients, variables))
            clipped, norm = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 1.0)
            optimizer.apply_gradients(zip(clipped, variables), skip_gradients_aggregation=True)

        Args:
            grads_and_vars: as for `apply_gradients`.

        Returns:
            The pairs, in order. Rows of `tf.IndexedSlices` are unique; None stays None.

        Raises:
            ValueError: no gradient at all, or a synchronous step on parameter servers.

        Context: replica; a RuntimeError elsewhere.
        """
        return aggregate_alone(self, grads_and_vars)

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
        """Compute the gradients of `loss` and apply them.

        Args:
            loss: tensor that was computed inside `tape`, or a callable without arguments that returns one. It is scaled
                here if the optimizer scales losses: pass the unscaled loss.
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
        """Return the gradients of the scaled loss: what `apply_gradients` takes, and unscales. Arguments as `minimize`."""
        if tape is None and not callable(loss):
            raise WrongUse(
                "`tape` is missing: if `loss` is a tensor, pass the tf.GradientTape that recorded it, "
                f"or pass a function that computes the loss. Received: loss={loss!r}"
            )
        if var_list is None:
            raise WrongUse("`var_list` is None: pass variables, such as `model.trainable_variables`.")
        recorder: Any = tape or tf.GradientTape()
        if callable(loss):
            with recorder:
                if not callable(var_list):
                    for variable in tf.nest.flatten(var_list):
                        recorder.watch(variable.value if isinstance(variable, keras.Variable) else variable)
                value = self.scale_loss(loss())
        else:
            value = loss
            plain = type(self).scale_loss is keras.optimizers.Optimizer.scale_loss
            if not plain or self.loss_scale_factor is not None:
                with recorder:
                    value = self.scale_loss(loss)
        variables = tf.nest.flatten(var_list() if callable(var_list) else var_list)
        gradients = gradient(recorder, value, variables, grad_loss)
        return list(zip(gradients, variables))

    def on_adopted(self) -> None:
        """Complete an instance to which `adopt` has assigned this class; called once."""
        self.gradient_transformers = self.__dict__.get("_transformers")
        if self.built and self.gradient_accumulation_steps:
            accumulation.create_weight(self)

    def _track_variable(self, variable: Any) -> None:
        super()._track_variable(as_number(variable))

    # What the stages ask for.

    def split(self, pairs: Pairs) -> list[tuple[Any, Pairs]]:
        """Return which optimizer updates which pairs: this one all of them."""
        return [(self, pairs)]

    def build(self, variables: Sequence[Any]) -> None:
        """Create the optimizer state, as in Keras, in the scope of the current strategy."""
        move_into_scope(self)
        super().build(variables)
        register_shards(self, variables)
        if self.gradient_accumulation_steps:
            accumulation.create_weight(self)

    def add_variable_from_reference(
        self, reference_variable: Any, name: str | None = None, initializer: Any = "zeros"
    ) -> Any:
        """Create a state variable, as in Keras; on parameter servers next to its variable. It may be sharded."""
        move_into_scope(self)
        shards, rows = create_as_shards(reference_variable, initializer), create_in_rows(reference_variable)
        with colocate_creation(reference_variable), shards, rows:
            return super().add_variable_from_reference(reference_variable, name, initializer)

    @property
    def variables(self) -> list[Any]:
        """All state, in the order in which it is saved."""
        own = super().variables
        extra = self.__dict__.get("accumulated_weight")
        return own if extra is None else [*own, extra]

    @property
    def iterations(self) -> Any:
        """Updates applied so far; with accumulation one for every `gradient_accumulation_steps` calls."""
        frozen = read_count(self)
        return super().iterations if frozen is None else frozen

    is_inner = False
    """Whether another optimizer holds this one, and with its own variables saves and loads this one's."""


register_class(keras.optimizers.Optimizer, Optimizer)
