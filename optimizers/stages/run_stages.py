"""The stages from gradients to new weights, in the order in which they happen. The only place in which they do.

    1  aggregate    the sum over replicas, or `gradient_aggregator`            one collective, the only communication
    2  unscale      / loss scale
    3  verdict      all finite? one answer for every replica                   only if a loss scale asks
    4  transform    `gradient_transformers` in order, then clipping
    5  apply        weight decay, the update rule, moving averages, constraints, the count

Stages 1 to 3 run in replica context. From there on every replica holds the same bits, so each computes the same update
for its own copies with no further communication: stages 4 and 5 may stand in a conditional, in a loop, under XLA. Where
all replicas share one copy they run once (`distribute.replicas.once_per_copy`).

With accumulation, stages 4 and 5 happen at every k-th call, on the weighted mean of the k gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from ...compat.guarded_writes import writes_only_where
from ...compat.optimizers import call_count, check_known, overwritten_by_gradient, trained_variables
from ...compat.variables import direct_writes
from ...distribute.parameter_servers.updates import send_to_servers
from ...distribute.replicas import all_reduce_sum, local_copy, num_replicas, replica_id
from ...distribute.step_context import current_step
from .. import checks
from ..building import ensure_built
from ..call_options import CallOptions, call_options, current_options, frozen_iterations
from ..recomputation import compute_again
from .accumulation import accumulate, if_true
from .aggregators import SMALL, no_aggregation, reduce_packed, weighted
from .calls_on_host import only_counted_on_device
from .carried_errors import carry_on, with_errors
from .earlier_writes import EarlierWrites
from .gradient_watch import GradientWatch
from .overwriting import largest
from .skipping import skips_by_choice
from .slices import divided, map_values, shorter, unique_rows, values_of
from .slices_on_gpus import fit_to_travel, is_on_gpu, merged_rows
from .users_code import has_code_of_users, makes_slices_dense
from .way import Way, once

Pairs = list[tuple[Any, Any]]


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
    """One call of an optimizer: aggregate, unscale, verdict, transform, apply.

    Args:
        optimizer: `unisono.optimizers.Optimizer`; built here if it is not.
        grads_and_vars: this replica's gradients (dense, `tf.IndexedSlices` or None) and their variables.
        scale: scalar that the loss was multiplied with, beside the optimizer's own `loss_scale_factor`.
        check_finite: whether to skip the update, every bit left as it was, unless all aggregated gradients are finite.
        veto: bool scalar tensor, the same on every replica; with `check_finite`: true skips the update in any case.
        options: None: those of the call that this thread is in.

    Returns:
        The verdict: bool scalar tensor, the same on every replica, true if the update was applied. Without
        `check_finite` the constant True. A tensor verdict is also appended to `current_step().verdicts`.

    Context: replica, or cross-replica (then each replica takes its own part of `PerReplica` gradients).
    """
    options = options or current_options()
    pairs = checks.checked_pairs(grads_and_vars)
    ensure_built(optimizer, [v for _, v in pairs])
    with direct_writes():
        check_known(optimizer, [v for _, v in pairs])
    if tf.distribute.get_replica_context() is None:
        return _in_every_replica(optimizer, pairs, scale, check_finite, veto, options)
    pairs, way = checks.with_gradients(optimizer, pairs), optimizer.way(options)
    compute_again()
    weight_total, weight = _weight_total(options), replica_weight(options)

    watch = optimizer.__dict__.get("_gradient_watch")
    began = watch.before_aggregation(pairs) if watch is not None else None
    sent, weight = with_errors(optimizer, pairs, options, weight, scale)
    pairs = way.aggregate(optimizer, sent, options, weight)
    if watch is not None:
        watch.after_aggregation(pairs, began)
    if not options.unscaled:
        pairs = unscale(optimizer, pairs, scale)
    verdict = way.all_finite(optimizer, pairs, options) if check_finite else True
    if veto is not None:
        verdict = tf.logical_and(verdict, tf.logical_not(veto))
    if watch is not None:
        verdict = way.look(watch, pairs, verdict)
    if verdict is not True and veto is None:
        only_counted_on_device()
    carry_on(optimizer, sent, options, scale, verdict)
    variables = [v for _, v in pairs]
    write = functools.partial(way.update, optimizer, variables, EarlierWrites(variables))
    way.once(optimizer, variables, write)(
        verdict, send_to_servers([g for g, _ in pairs], variables), weight_total
    )
    step = current_step()
    if step is not None and verdict is not True:
        step.verdicts.append(verdict)
    return verdict


def aggregate(optimizer: Any, pairs: Pairs, options: CallOptions, weight: Any) -> Pairs:
    """Stage 1: the same gradients on every replica, each row of sparse ones named once.

    The gradients of each replica are multiplied with its `weight`, so that their sum is the gradient of the global
    batch; None: they are summed as they are.
    """
    aggregator, step = optimizer.gradient_aggregator, current_step()
    if not options.skip_aggregation and aggregator is not no_aggregation and num_replicas() > 1:
        overwriting = [overwritten_by_gradient(v) for _, v in pairs]
        summed = [pair for pair, direct in zip(pairs, overwriting) if not direct]
        if aggregator is None:
            totals = reduce_packed([g for g, _ in fit_to_travel(summed)], SMALL, weight)
            summed = [(g, v) for g, (_, v) in zip(totals, summed)]
        else:
            mine = summed if weight is None else [(weighted(g, weight), v) for g, v in summed]
            summed = checks.same_variables(aggregator, "gradient_aggregator", mine, aggregator(mine))
        rest = iter(summed)
        pairs = [(largest(g), v) if direct else next(rest) for (g, v), direct in zip(pairs, overwriting)]
    elif not options.skip_aggregation and aggregator not in (None, no_aggregation):
        pairs = checks.same_variables(aggregator, "gradient_aggregator", pairs, aggregator(list(pairs)))
    if has_code_of_users(optimizer, [v for _, v in pairs]):  # it may update the named rows alone
        return [(unique_rows(g), v) for g, v in pairs]
    if is_on_gpu():
        return [(merged_rows(g), v) for g, v in pairs]
    # Several replicas could decide differently: outside of a graph each has rows of its own.
    if num_replicas() == 1 and makes_slices_dense(optimizer):
        pairs = [(g if overwritten_by_gradient(v) else shorter(g, list(v.shape), 1), v) for g, v in pairs]
    return [(unique_rows(g, densely=step is not None and step.in_xla), v) for g, v in pairs]


def unscale(optimizer: Any, pairs: Pairs, scale: Any = None) -> Pairs:
    """Stage 2: the gradient of the loss itself, not of the scaled loss."""
    for factor in (optimizer.loss_scale_factor, scale):
        if factor is not None:
            pairs = [(g if overwritten_by_gradient(v) else divided(g, factor), v) for g, v in pairs]
    return pairs


def all_finite(optimizer: Any, pairs: Pairs, options: CallOptions) -> tf.Tensor:
    """Stage 3: whether every number of every gradient is finite; bool scalar, the same on every replica.

    It must be finite in the dtype of its variable, in which the update rule computes: a gradient can be wider.
    """
    finite = [tf.reduce_all(tf.math.is_finite(tf.cast(values_of(g), v.dtype))) for g, v in pairs]
    verdict = tf.reduce_all(tf.stack(finite))
    if num_replicas() > 1 and (options.skip_aggregation or optimizer.gradient_aggregator is not None):
        # Nobody vouches that they agree.
        verdict = all_reduce_sum([tf.cast(verdict, tf.float32)])[0] == num_replicas()
    return verdict


def transform(optimizer: Any, pairs: Pairs) -> Pairs:
    """Stage 4: the transformers in order, then clipping; both see the aggregated, unscaled gradients of all variables."""
    for transformer in optimizer.gradient_transformers:
        pairs = checks.same_variables(transformer, "gradient_transformers", pairs, transformer(list(pairs)))
    clipped = optimizer._clip_gradients([g for g, _ in pairs])
    return [(g, v) for g, (_, v) in zip(clipped, pairs)]


def update(
    optimizer: Any,
    variables: list[Any],
    earlier: EarlierWrites,
    verdict: Any,
    gradients: Sequence[Any],
    weight: Any,
    *,
    apply: Callable[[Any, Pairs], None] | None = None,
    branch: Callable[..., None] = if_true,
    copy_of: Callable[[Any], Any] = local_copy,
) -> None:
    """Stages 4 and 5 where the verdict is true: of the optimizer, or of each one inside for its part of the variables.

    Args:
        optimizer: built.
        variables: those that have a gradient.
        earlier: what the step has written to them before.
        verdict: True, or bool scalar tensor.
        gradients: aggregated and unscaled.
        weight: scalar; the weight total of this call, for accumulation.
        apply: None: `transform_and_apply`.
        branch: a conditional, as `if_true`.
        copy_of: what this replica holds of an accumulator; see `accumulate`.

    Context: where variables are written (`once_per_copy`).
    """
    apply = apply or transform_and_apply
    if verdict is not True:
        ways = {"apply": apply, "branch": branch, "copy_of": copy_of}
        accepted = functools.partial(update, optimizer, variables, earlier, True, gradients, weight, **ways)
        if skips_by_choice(optimizer, variables):
            with writes_only_where(verdict):
                accepted()
            return
        branch(verdict, accepted)
        return
    with direct_writes():
        earlier.flush()
        parts = optimizer.split(list(zip(gradients, variables)))
        for each, part in parts:
            if each.gradient_accumulation_steps:
                accumulate(each, part, weight, functools.partial(apply, each), branch, copy_of)
            else:
                apply(each, part)
            with once_there_is_one(part):
                local_copy(call_count(each)).assign_add(1)
        if all(each is not optimizer for each, _ in parts):
            local_copy(call_count(optimizer)).assign_add(1)


def transform_and_apply(optimizer: Any, pairs: Pairs) -> None:
    """Stages 4 and 5: writes the weights and the slots; the order of what stage 5 does is Keras'."""
    with frozen_iterations(optimizer, tf.identity(tf.convert_to_tensor(optimizer.iterations))):
        direct = [(g, v) for g, v in pairs if overwritten_by_gradient(v)]
        pairs = transform(optimizer, [(g, v) for g, v in pairs if not overwritten_by_gradient(v)])
        for gradient, variable in direct:
            optimizer.assign(variable, gradient)
        if pairs:
            gradients, variables = [g for g, _ in pairs], [v for _, v in pairs]
            with once_there_is_one(pairs):
                optimizer.decay_weights(variables)
            optimizer._backend_update_step(gradients, variables, optimizer.learning_rate_for(variables))
        optimizer._update_model_variables_moving_average(trained_variables(optimizer))
        optimizer.overwrite_with_average_when_due()
        for _, variable in pairs:
            if variable.constraint is not None:
                copy = local_copy(variable)
                copy.assign(variable.constraint(copy))


def once_there_is_one(pairs: Pairs) -> Any:
    """Writes that need no gradient wait for one: a step that fails at its data changes nothing.

    The last variable's, which is the first that a chain of layers has. To wait for all would keep the next step waiting.
    """
    return tf.control_dependencies([values_of(gradient) for gradient, _ in pairs[-1:]])


def _weight_total(options: CallOptions) -> Any:
    """The divisor of this micro-batch's loss, or what is proportional to it."""
    if options.weight_total is not None:
        return options.weight_total
    step = current_step()
    if step is None:
        return 1
    return step.global_rows if step.weight_total is None else step.weight_total


def replica_weight(options: CallOptions) -> Any:
    """What this replica's gradients are multiplied with; None: nothing.

    It is None outside of a step, in a step of shares, and where the loss or the caller has seen to it. Inside a step they
    are means over this replica's rows.
    """
    step = current_step()
    if step is None or step.shares or options.skip_aggregation:
        return None
    return None if options.contributions else step.share(tf.float64)


def _in_every_replica(
    optimizer: Any, pairs: Pairs, scale: Any, check_finite: bool, veto: Any, options: CallOptions
) -> Any:
    """The stages on each replica, called from cross-replica context.

    A `PerReplica` gradient is each replica's own part. Any other is the total: replica 0 brings it, the others bring 0.
    """
    strategy = tf.distribute.get_strategy()
    gradients = [g for g, _ in pairs]
    whole = [g is not None and not isinstance(g, tf.distribute.DistributedValues) for g in gradients]

    def on_replica(gradients: list[Any]) -> Any:
        if not options.skip_aggregation and num_replicas() > 1:
            first = replica_id() == 0
            only_first = lambda x: tf.where(first, x, tf.zeros_like(x))  # noqa: E731
            gradients = [map_values(only_first, g) if w else g for g, w in zip(gradients, whole)]
        mine = [(g, v) for g, (_, v) in zip(gradients, pairs)]
        with call_options(options):
            return tf.convert_to_tensor(
                run_stages(optimizer, mine, scale=scale, check_finite=check_finite, veto=veto)
            )

    verdict = strategy.run(on_replica, args=(gradients,))
    return strategy.experimental_local_results(verdict)[0] if check_finite else True


WHOLE = Way(aggregate, all_finite, GradientWatch.look, update, once)
"""On every replica the same whole gradients."""
