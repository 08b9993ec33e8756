"""The stages from gradients to new weights, in the order in which they happen. The only place in which they do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.optimizers import (
    call_count,
    check_known,
    overwritten_by_gradient,
    trained_variables,
)
from ...compat.keras_private.variables import direct_writes, stateless_scope
from ...distribute.parameter_servers.updates import send_to_servers
from ...distribute.replicas import all_reduce_sum, local_copy, num_replicas, replica_id
from ...distribute.step_context import current_step
from .. import checks
from ..building import ensure_built
from ..rematerialization import rematerialize
from .accumulation import accumulate, only_counted_on_device
from .aggregators import aggregate, without_overwriting
from .call_options import CallOptions, call_options, current_options, frozen_iterations
from .error_feedback import with_errors
from .sparse_gradients import Pairs, divided, map_values, values_of
from .user_code import if_true, once_per_variable_copy, write_where


@tf.autograph.experimental.do_not_convert
def run_stages(
    optimizer: Any,
    grads_and_vars: Iterable[tuple[Any, Any]],
    *,
    scale: Any = None,
    check_finite: bool = False,
    veto: Any = None,
    options: CallOptions | None = None,
) -> Any:
    """One call of an optimizer: aggregate, unscale, check, transform, apply.

    1  aggregate    the sum over replicas, or `gradient_aggregator`; the only communication
    2  unscale      / loss scale
    3  check        all finite? one answer for every replica, only if a loss scale asks
    4  transform    `gradient_transformers` in order, then clipping
    5  apply        weight decay, the update rule, moving averages, constraints, the count

    Stages 1 to 3 run in replica context. From there on every replica holds the same bits: stages 4 and 5 may be in a
    conditional, in a loop, under XLA. Where all replicas share one copy they run once (`distribute.replicas.once_per_copy`);
    with accumulation, at every k-th call, on the weighted mean of the k gradients.

    Args:
        optimizer: `unisono.optimizers.Optimizer`; built here if it is not.
        grads_and_vars: this replica's gradients (dense, `tf.IndexedSlices` or None) and their variables.
        scale: scalar by which the loss was multiplied, next to the optimizer's own `loss_scale_factor`.
        check_finite: whether to skip the update, every bit unchanged, unless all aggregated gradients are finite.
        veto: bool scalar tensor, the same on every replica; with `check_finite`: true skips the update in any case.
        options: None: those of the call that this thread is in.

    Returns:
        The finite check: bool scalar tensor, the same on every replica, true if the update was applied. Without
        `check_finite` the constant True. A tensor is also appended to `current_step().finite_checks`.

    Context: replica, or cross-replica (then each replica takes its own part of `PerReplica` gradients).
    """
    options = options or current_options()
    pairs = checks.checked_pairs(grads_and_vars)
    ensure_built(optimizer, [v for _, v in pairs])
    with direct_writes():
        check_known(optimizer, [v for _, v in pairs])
    if tf.distribute.get_replica_context() is None:
        return _in_every_replica(optimizer, pairs, scale, check_finite, veto, options)
    pairs, stages = checks.with_gradients(optimizer, pairs), optimizer.stages(options)
    rematerialize()
    watch = optimizer.__dict__.get("_gradient_watch")
    began = watch.before_aggregation(pairs) if watch is not None else None
    sent, keep_errors = with_errors(optimizer, pairs, options, scale)
    pairs = stages.aggregate(optimizer, sent, options)
    if watch is not None:
        watch.after_aggregation(pairs, began)
    if not options.unscaled:
        pairs = unscale(optimizer, pairs, scale)
    finite = stages.all_finite(optimizer, pairs, options) if check_finite else True
    if veto is not None:
        finite = tf.logical_and(finite, tf.logical_not(veto))
    if watch is not None:
        finite = stages.record(watch, pairs, finite)
    if finite is not True and veto is None:
        only_counted_on_device()
    keep_errors(finite)
    variables = [v for _, v in pairs]
    write = functools.partial(stages.update, optimizer, variables, _take_collected_writes(variables))
    gradients = send_to_servers([g for g, _ in pairs], variables)
    stages.once(optimizer, variables, write)(finite, gradients, options.divisor())
    step = current_step()
    if step is not None and finite is not True:
        step.finite_checks.append(finite)
    return finite


def unscale(optimizer: Any, pairs: Pairs, scale: Any = None) -> Pairs:
    """Stage 2: the gradient of the loss itself, not of the scaled loss."""
    for factor in (optimizer.loss_scale_factor, scale):
        if factor is not None:
            pairs = [(g if overwritten_by_gradient(v) else divided(g, factor), v) for g, v in pairs]
    return pairs


def transform_and_apply(optimizer: Any, pairs: Pairs) -> None:
    """Stages 4 and 5: writes the weights and the optimizer state, in Keras' order."""
    with frozen_iterations(optimizer, tf.identity(tf.convert_to_tensor(optimizer.iterations))):
        pairs, overwriting = without_overwriting(pairs)
        pairs = transform(optimizer, pairs)
        for gradient, variable in overwriting:
            optimizer.assign(variable, gradient)
        if pairs:
            gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
            with once_there_is_one(pairs):
                optimizer.decay_weights(variables)
            optimizer._backend_update_step(gradients, variables, optimizer.learning_rate_for(variables))
        optimizer._update_model_variables_moving_average(trained_variables(optimizer))
        optimizer.overwrite_with_average_when_due()
        constrain([v for _, v in pairs])


class Stages:
    """Stages 1 and 3 to 5 on whole gradients, the same on every replica; `ShardedStages` overrides them for shards."""

    aggregate = staticmethod(aggregate)
    """Stage 1."""
    branch = staticmethod(if_true)
    """A conditional around writes."""
    copy_of = staticmethod(local_copy)
    """What this replica holds of an accumulator."""
    once = staticmethod(once_per_variable_copy)
    """Makes of `update` what each replica calls."""
    transform_and_apply = staticmethod(transform_and_apply)
    """Stages 4 and 5."""

    def all_finite(self, optimizer: Any, pairs: Pairs, options: CallOptions) -> tf.Tensor:
        """Stage 3: whether every number of every gradient is finite; bool scalar, the same on every replica.

        It must be finite in the dtype of its variable, in which the update rule computes: a gradient can be wider.
        """
        finite = tf.reduce_all(
            tf.stack([tf.reduce_all(tf.math.is_finite(tf.cast(values_of(g), v.dtype))) for g, v in pairs])
        )
        if num_replicas() == 1 or not self.can_differ(optimizer, options):
            return finite
        return all_reduce_sum([tf.cast(finite, tf.float32)])[0] == num_replicas()

    def can_differ(self, optimizer: Any, options: CallOptions) -> bool:
        """Whether the replicas' gradients can differ after stage 1: nothing guarantees that user code made them equal."""
        return options.skip_aggregation or optimizer.gradient_aggregator is not None

    def record(self, watch: Any, pairs: Pairs, finite: Any) -> Any:
        """What a `GradientWatch` makes of the finite check."""
        return watch.record(pairs, finite)

    def update(
        self,
        optimizer: Any,
        variables: list[Any],
        collected: Sequence[tuple[keras.Variable, Any]],
        finite: Any,
        gradients: Sequence[Any],
        weight_total: Any,
    ) -> None:
        """Stages 4 and 5, if `finite`: of the optimizer, or of each one inside for its part of the variables.

        Context: where variables are written (`once_per_copy`).
        """
        if finite is not True:
            accepted = functools.partial(
                self.update, optimizer, variables, collected, True, gradients, weight_total
            )
            write_where(finite, optimizer, variables, accepted, self.branch)
            return
        with direct_writes():
            for variable, value in collected:
                local_copy(variable).assign(value)
            parts = optimizer.split(list(zip(gradients, variables)))
            for each, part in parts:
                apply = functools.partial(self.transform_and_apply, each)
                if each.gradient_accumulation_steps:
                    accumulate(each, part, weight_total, apply, self.branch, self.copy_of)
                else:
                    apply(part)
                with once_there_is_one(part):
                    local_copy(call_count(each)).assign_add(1)
            if all(each is not optimizer for each, _ in parts):
                local_copy(call_count(optimizer)).assign_add(1)


def transform(optimizer: Any, pairs: Pairs) -> Pairs:
    """Stage 4: the transformers in order, then clipping; both see the aggregated, unscaled gradients of all variables."""
    for transformer in optimizer.gradient_transformers:
        pairs = checks.same_variables(transformer, "gradient_transformers", pairs, transformer(list(pairs)))
    return clip(optimizer, pairs)


def clip(optimizer: Any, pairs: Pairs) -> Pairs:
    """The pairs with gradients clipped as the arguments of the optimizer say."""
    clipped = optimizer._clip_gradients([g for g, _ in pairs])
    return [(g, v) for g, (_, v) in zip(clipped, pairs)]


def constrain(variables: Sequence[Any]) -> None:
    """Applies the constraints of variables to this replica's copies."""
    for variable in variables:
        if variable.constraint is not None:
            copy = local_copy(variable)
            copy.assign(variable.constraint(copy))


def once_there_is_one(pairs: Pairs) -> Any:
    """Writes that need no gradient wait for one: a step that fails at its data changes nothing.

    The last variable's, which is the first that a chain of layers has. To wait for all would keep the next step waiting.
    """
    return tf.control_dependencies([values_of(gradient) for gradient, _ in pairs[-1:]])


def _take_collected_writes(variables: Sequence[Any]) -> list[tuple[keras.Variable, Any]]:
    """What the current `keras.StatelessScope` holds for `variables`, taken out of it, to be written before the update.

    A layer may assign a trainable variable while it computes (spectral normalization does). In a step that write is
    collected; after the update it would undo the update, so it is made first.
    """
    scope, step = stateless_scope(), current_step()
    if scope is None:
        return []
    values = [(v, scope.state_mapping.get(id(v))) for v in variables if isinstance(v, keras.Variable)]
    collected = [(variable, value) for variable, value in values if value is not None]
    if step is not None and step.writes is scope:
        step.writes.forget([variable for variable, _ in collected])
    for variable, _ in collected:
        scope.state_mapping.pop(id(variable), None)
    return collected


def _in_every_replica(
    optimizer: Any, pairs: Pairs, scale: Any, check_finite: bool, veto: Any, options: CallOptions
) -> Any:
    """The stages on each replica, called from cross-replica context.

    A `PerReplica` gradient is each replica's own part. Any other is the total: replica 0 sends it, the others send 0.
    """
    strategy = tf.distribute.get_strategy()
    gradients = [g for g, _ in pairs]
    whole = [g is not None and not isinstance(g, tf.distribute.DistributedValues) for g in gradients]

    def on_replica(gradients: list[Any]) -> Any:
        if not options.skip_aggregation and num_replicas() > 1:
            first = replica_id() == 0
            only_first: Callable[[Any], Any] = lambda x: tf.where(first, x, tf.zeros_like(x))  # noqa: E731
            gradients = [map_values(only_first, g) if w else g for g, w in zip(gradients, whole)]
        mine = [(g, v) for g, (_, v) in zip(gradients, pairs)]
        with call_options(options):
            return tf.convert_to_tensor(
                run_stages(optimizer, mine, scale=scale, check_finite=check_finite, veto=veto)
            )

    finite = strategy.run(on_replica, args=(gradients,))
    return strategy.experimental_local_results(finite)[0] if check_finite else True
