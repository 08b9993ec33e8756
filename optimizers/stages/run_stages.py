"""The stages from gradients to new weights, in the order in which they happen, and nowhere else."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.optimizers import call_count, check_known, overwritten_by_gradient
from ...compat.keras_private.variables import direct_writes, stateless_scope
from ...distribute.parameter_servers.updates import send_to_servers
from ...distribute.replicas import (
    all_reduce_sum,
    function_of_its_own,
    local_copy,
    num_replicas,
    once_per_copy,
    replica_id,
)
from ...distribute.sharding.collectives import if_all
from ...distribute.sharding.sharded_value import layout_of, own_copy
from ...distribute.step_context import current_step
from .. import optimizer_checks
from ..adoption import adopt
from ..building import ensure_built
from ..update_rules.replica_rule import once_there_is_one, transform_and_apply
from ..update_rules.sharded_update import (
    aggregate_shards,
    check_shards,
    cut,
    gather,
    shards_state,
    transform_and_apply_shards,
)
from .accumulation import accumulate
from .aggregators import aggregate
from .call_options import CallOptions, call_options, current_options
from .sparse_gradients import Pairs, divide, map_values, values_of
from .step_hooks import step_hooks
from .user_code import has_own_apply, has_user_code, if_true, write_where

Apply = Callable[[Any, Pairs], None]
"""Stages 4 and 5 of an optimizer."""


@tf.autograph.experimental.do_not_convert
def run_stages(
    optimizer: Any,
    grads_and_vars: optimizer_checks.GradsAndVars,
    *,
    scale: Any = None,
    check_finite: bool = False,
    veto: Any = None,
    options: CallOptions | None = None,
    called: bool = True,
) -> Any:
    """Run one call of an optimizer: aggregate, unscale, check, transform, apply.

    1  aggregate    the sum over replicas, or `gradient_aggregator`; the only communication
    2  unscale      / loss scale
    3  check        all finite? one answer for every replica, only if a loss scale asks
    4  transform    `gradient_transformers` in order, then clipping
    5  apply        weight decay, the update rule, moving averages, constraints, the count

    Stages 1 to 3 run in replica context. From there on every replica holds the same bits: stages 4 and 5 may be in a
    conditional, in a loop, under XLA. Where all replicas share one copy they run once (`distribute.replicas.once_per_copy`);
    with accumulation, at every k-th call, on the weighted mean of the k gradients.

    The optimizer is built here if it is not. The gradients are this replica's: dense, `tf.IndexedSlices` or None. The loss
    was multiplied by `scale`, next to the optimizer's own `loss_scale_factor`. With `check_finite` the update is skipped,
    every bit unchanged, unless all aggregated gradients are finite; `veto`, a bool scalar that is the same on every replica,
    skips it in any case. `options` are by default those of the call that this thread is in. Not `called`: the call was
    that of another optimizer's `apply`, which holds this one, so this one's `apply` is called for stages 4 and 5.

    Return the finite check: bool scalar tensor, the same on every replica, true if the update was applied. Without
    `check_finite` it is the constant True. A tensor is also appended to `current_step().finite_checks`.

    Context: replica, or cross-replica (then each replica takes its own part of `PerReplica` gradients).
    """
    options = options or current_options()
    pairs = optimizer_checks.check_pairs(grads_and_vars)
    ensure_built(optimizer, [v for _, v in pairs])
    if called:
        with direct_writes():
            check_known(optimizer, [v for _, v in pairs])
    if tf.distribute.get_replica_context() is None:
        run = functools.partial(
            run_stages, scale=scale, check_finite=check_finite, veto=veto, options=options, called=called
        )
        finite = _in_every_replica(functools.partial(run, optimizer), pairs, options)
        return finite if check_finite else True
    every = [v for _, v in pairs]
    pairs, sharded = optimizer_checks.with_gradients(optimizer, pairs), shards_state(optimizer, every)
    apply_to: Any = transform_and_apply_shards if sharded else transform_and_apply
    check: Callable[[Any, Pairs, Any], Any] = (
        check_shards if sharded else lambda hook, *args: hook.check_gradients(*args)
    )
    hooks = step_hooks(optimizer)
    begun = [hook.before_aggregation(pairs) for hook in hooks]
    pairs = (aggregate_shards if sharded else aggregate)(optimizer, pairs, options)
    for hook, before in zip(hooks, begun):
        hook.after_aggregation(pairs, before)
    if not options.unscaled:
        pairs = unscale(optimizer, pairs, scale)
    finite = _all_finite(optimizer, pairs, options, apply_to) if check_finite else True
    if veto is not None:
        finite = tf.logical_and(finite, tf.logical_not(veto))
    for hook in hooks:
        finite = check(hook, pairs, finite)
    step = current_step()
    if step is not None and finite is not True and veto is None:
        step.calls = {}  # this call may be skipped without being counted, and the host cannot know
    variables = [v for _, v in pairs]
    collected = _take_collected_writes([*variables, *optimizer.variables])
    write: Any = functools.partial(_update, optimizer, variables, every, collected, apply_to, called)
    gradients = send_to_servers([g for g, _ in pairs], variables)
    if apply_to is transform_and_apply:  # no other replica has the shards of this one
        write = once_per_copy(write)
        write = function_of_its_own(write) if has_user_code(optimizer, variables) else write
    write(finite, gradients, options.divisor())
    if step is not None and finite is not True:
        step.finite_checks.append(finite)
    return finite


def unscale(optimizer: Any, pairs: Pairs, scale: Any = None) -> Pairs:
    """Run stage 2: return the gradient of the loss itself, not of the scaled loss."""
    for factor in (optimizer.loss_scale_factor, scale):
        if factor is not None:
            pairs = [(g if overwritten_by_gradient(v) else divide(g, factor), v) for g, v in pairs]
    return pairs


def _all_finite(optimizer: Any, pairs: Pairs, options: CallOptions, apply_to: Apply) -> tf.Tensor:
    """Run stage 3: return whether all gradients are finite in their variables' dtypes, a bool equal on all replicas."""
    finite = tf.reduce_all(
        tf.stack([tf.reduce_all(tf.math.is_finite(tf.cast(values_of(g), v.dtype))) for g, v in pairs])
    )
    # Nothing guarantees that user code has made the gradients equal; shards differ.
    can_differ = apply_to is not transform_and_apply
    can_differ = can_differ or options.skip_aggregation or optimizer.gradient_aggregator is not None
    if num_replicas() == 1 or not can_differ:
        return finite
    return all_reduce_sum([tf.cast(finite, tf.float32)])[0] == num_replicas()


def _update(
    optimizer: Any,
    variables: list[Any],
    every: list[Any],
    collected: Sequence[tuple[keras.Variable, Any]],
    apply_to: Apply,
    called: bool,
    finite: Any,
    gradients: Sequence[Any],
    weight_total: Any,
) -> None:
    """Run stages 4 and 5, if `finite`, of the optimizer or each inside; `every` other variable has no gradient."""
    branch = if_true if apply_to is transform_and_apply else if_all
    if finite is not True:
        accepted = functools.partial(
            _update, optimizer, variables, every, collected, apply_to, called, True, gradients, weight_total
        )
        write_where(finite, optimizer, variables, accepted, branch)
        return
    with direct_writes(_write_own_copy if tf.distribute.has_strategy() else None):
        for variable, value in collected:
            (local_copy if layout_of(variable) is None else own_copy)(variable).assign(value)
        found = dict(zip(map(id, variables), gradients))
        pairs = [(found.get(id(v)), v) for v in every]
        parts = optimizer.split(pairs) if called else [(optimizer, pairs)]
        for each, part in parts:
            if not called or each is not optimizer:
                _call_apply(each, part, weight_total, apply_to)
                continue
            part = [pair for pair in part if pair[0] is not None]
            apply = functools.partial(apply_to, each)
            if each.gradient_accumulation_steps:
                accumulate(each, part, weight_total, apply, branch)
            else:
                apply(part)
            with once_there_is_one(part):
                local_copy(call_count(each)).assign_add(1)
        if called and all(each is not optimizer for each, _ in parts):
            local_copy(call_count(optimizer)).assign_add(1)


def _write_own_copy(variable: Any, value: Any) -> None:
    copy = local_copy(variable)
    copy.assign(tf.cast(value, copy.dtype))


def _call_apply(optimizer: Any, pairs: Pairs, weight_total: Any, apply_to: Apply) -> None:
    """Call `apply` of an optimizer inside another one, as Keras does; a user's may do more than call its base class's."""
    whole = apply_to is transform_and_apply_shards and has_own_apply(optimizer)
    pairs = gather(pairs) if whole else pairs
    adopt(optimizer)

    def update(each: Any, pairs: Pairs) -> None:
        every = [v for _, v in pairs]
        ensure_built(each, every)
        check_known(each, every)
        pairs = [(g, v) for g, v in pairs if g is not None]
        pairs = pairs if each is optimizer else unscale(each, pairs)
        pairs = cut(pairs) if whole else pairs
        if pairs:
            gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
            _update(each, variables, every, (), apply_to, True, True, gradients, weight_total)

    with call_options(CallOptions(update=update)):
        optimizer.apply([g for g, _ in pairs], [v for _, v in pairs])


def _take_collected_writes(variables: Sequence[Any]) -> list[tuple[keras.Variable, Any]]:
    """Take what a scope has collected for `variables`: written before the update, as it would undo it after."""
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


def _in_every_replica(run: Callable[[Pairs], Any], pairs: Pairs, options: CallOptions) -> Any:
    """Run the stages on each replica; `PerReplica` gradients are its own, of others replica 0 sends the total."""
    strategy = tf.distribute.get_strategy()
    gradients = [g for g, _ in pairs]
    whole = [g is not None and not isinstance(g, tf.distribute.DistributedValues) for g in gradients]

    def on_replica(gradients: list[Any]) -> Any:
        if not options.skip_aggregation and num_replicas() > 1:
            first = replica_id() == 0
            only_first: Callable[[Any], Any] = lambda x: tf.where(first, x, tf.zeros_like(x))  # noqa: E731
            gradients = [map_values(only_first, g) if w else g for g, w in zip(gradients, whole)]
        return tf.convert_to_tensor(run([(g, v) for g, (_, v) in zip(gradients, pairs)]))

    finite = strategy.run(on_replica, args=(gradients,))
    return strategy.experimental_local_results(finite)[0]
