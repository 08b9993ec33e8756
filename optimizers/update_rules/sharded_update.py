"""The stages on parts: each replica holds a part of the optimizer state and updates a part of the weights.

With `sharded` these are flat shards of all variables, on a mesh the parts of the weights that it divides (`parts.py`).
Gradients are reduce-scattered in stage 1. In stage 4, operations on single numbers run on the parts; norms are partial sums
of squares, all-reduced. In stage 5 each replica updates its part of every weight, then the new weights are all-gathered.
"""

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...compat.keras_private.optimizers import averages_of, own_variables, trained_variables, variable_key
from ...compat.keras_private.variables import direct_writes, raw_value, with_shapes
from ...compat.wrong_use import WrongUse
from ...distribute.mesh import FLAT, mesh_of, to_rows
from ...distribute.replicas import function_of_its_own, num_replicas
from ...distribute.sharding.collectives import reduce_scatter
from ...distribute.sharding.sharded import find_unsharded_state, level_of
from ...distribute.sharding.sharded_value import (
    ShardedValue,
    TensorInPlace,
    is_sharded,
    layout_of,
    own_copy,
    own_shards,
    see_through,
    shard_variable,
)
from ..building import inner_optimizers, run_in_thread
from ..stages.aggregators import aggregate, without_overwriting
from ..stages.call_options import CallOptions, freeze_iterations
from ..stages.clipping import norms_over_shards
from ..stages.sparse_gradients import Pairs, fit_to_send, is_sparse
from ..stages.step_hooks import StepHook
from ..stages.transformers import AddDecayedWeights, ClipByGlobalNorm, ClipByNorm, ClipByValue
from ..stages.user_code import has_user_code, is_elementwise
from .parts import (
    check_parts,
    copies_of_parts,
    divide_state,
    gather_parts,
    join_flat_parts,
    layout_in_stages,
    own_part,
    own_weight,
    stays_whole,
    whole_value,
)
from .replica_rule import ReplicaRule, apply_constraint, clip, constrain, once_there_is_one, transform


def shards_state(optimizer: Any, variables: Sequence[Any]) -> bool:
    """Return whether the stages run on parts, for the current strategy; the optimizer state is then divided, too.

    A built optimizer may have made state before it was ours, or under another strategy. In a trace the variables are made
    in another thread. Outside of the scope, where no replica runs, divided variables are read and written as wholes.
    """
    if not tf.distribute.has_strategy():
        return False
    if level_of() is None or mesh_of().divides_weights:
        divided = level_of() is not None or any(layout_of(v) is not None for v in variables)
        if divided:
            check_parts(optimizer, variables)
            with direct_writes():
                divide_state(optimizer)
        return divided
    strategy = tf.distribute.get_strategy()
    late = [v for each in (optimizer, *inner_optimizers(optimizer)) for v in find_unsharded_state(each)]
    if late:
        run_in_thread(lambda: [shard_variable(variable, strategy) for variable in late])
    return True


def aggregate_shards(optimizer: Any, pairs: Pairs, options: CallOptions) -> Pairs:
    """Run stage 1: return this replica's shards; new values and sparse gradients summed but not accumulated are whole.

    An aggregator sums whole gradients, and so has the caller if aggregation is skipped: these are cut. A partitioned step
    has summed dense ones.
    """
    if options.skip_aggregation or optimizer.gradient_aggregator is not None:
        return cut(aggregate(optimizer, pairs, options))
    pairs = fit_to_send(pairs)
    flat = level_of() is not None
    scattered = [flat and not (stays_whole(g, v) or id(v) in options.summed) for g, v in pairs]
    if any(scattered) and mesh_of().divides_weights:
        raise WrongUse(
            f"An optimizer whose state is divided over the mesh {mesh_of()} was called in `strategy.run`: call it in a "
            "step of `fit`, or in a function that `unisono.replica_step` wraps."
        )
    # Where the number of samples is unknown, a gradient's shape can be too: its variable's is known.
    given = [tf.ensure_shape(g, v.shape) for (g, v), cut in zip(pairs, scattered) if cut]
    shards = iter(reduce_scatter([to_rows(g, FLAT, num_replicas()) for g in given]))
    summed = iter(aggregate(optimizer, [p for p, cut in zip(pairs, scattered) if not cut], options))
    pairs = [(next(shards), v) if cut else next(summed) for (_, v), cut in zip(pairs, scattered)]
    parts = [part for each, part in optimizer.split(pairs) if each.gradient_accumulation_steps]
    accumulated = {id(v) for part in parts for _, v in part}
    return [cut([(g, v)])[0] if is_sparse(g) and id(v) in accumulated else (g, v) for g, v in pairs]


def check_shards(hook: StepHook, pairs: Pairs, finite: Any) -> Any:
    """Return what a hook makes of the finite check and the parts of all replicas."""
    parts = [(own_part(g, layout_in_stages(v), v.shape) if is_sparse(g) else g, v) for g, v in pairs]
    with norms_over_shards(copies_of_parts(pairs)):
        return hook.check_gradients(parts, finite)


def transform_and_apply_shards(optimizer: Any, pairs: Pairs) -> None:
    """Run stages 4 and 5 on sharded gradients: each replica updates its shards. Context: replica.

    Where the last bit of what a replica computes differs, no other replica has that shard.
    """
    with freeze_iterations(optimizer):
        pairs, overwriting = without_overwriting(pairs)
        for gradient, variable in overwriting:
            optimizer.assign(variable, gradient)
        elementwise = is_elementwise(optimizer)
        pairs = _transform(optimizer, pairs, elementwise)
        shards = (_update_shards if elementwise else _update_by_whole)(optimizer, pairs)
        _average(optimizer, shards)
        variables = [v for v in trained_variables(optimizer) if id(v) in shards]
        _write_weights(variables, [shards[id(v)].tensor for v in variables])
        _constrain(optimizer, [v for _, v in pairs if v.constraint is not None])


def _transform(optimizer: Any, pairs: Pairs, to_shards: bool) -> Pairs:
    """Run stage 4 on shards or whole gradients."""
    own_clipping = type(optimizer)._clip_gradients is not ReplicaRule._clip_gradients
    if own_clipping or any(type(t) not in _ON_SHARDS for t in optimizer.gradient_transformers):
        with see_through(lambda value: TensorInPlace(value.key, whole_value(value), value)):
            pairs = transform(optimizer, gather(pairs))
        return cut(pairs) if to_shards else pairs
    pairs = [pair if not is_sparse(pair[0]) else cut([pair])[0] for pair in pairs]
    with norms_over_shards(copies_of_parts(pairs)):
        for transformer in optimizer.gradient_transformers:
            decays = type(transformer) is AddDecayedWeights
            pairs = transformer.decay(pairs, own_weight) if decays else transformer(pairs)
        pairs = clip(optimizer, pairs)
    return pairs if to_shards else gather(pairs)


_ON_SHARDS = (ClipByGlobalNorm, ClipByNorm, ClipByValue, AddDecayedWeights)
"""The ready pieces that need no whole gradient."""


def cut(pairs: Pairs) -> Pairs:
    """Return this replica's part of each whole gradient."""
    return [(own_part(g, layout_in_stages(v), v.shape), v) for g, v in pairs]


def gather(pairs: Pairs) -> Pairs:
    """Return the whole gradients; sparse ones are whole already, and None stays None."""
    dense = [(g, v) for g, v in pairs if g is not None and not is_sparse(g)]
    whole = iter(gather_parts(*zip(*[(g, layout_in_stages(v), v.shape) for g, v in dense])) if dense else ())
    return [(g if g is None or is_sparse(g) else next(whole), v) for g, v in pairs]


def _update_shards(optimizer: Any, pairs: Pairs) -> dict[int, TensorInPlace]:
    """Run the rule on this replica's shards of weights, gradients and state; return new shards by variable id."""
    with own_shards(), once_there_is_one(pairs):
        optimizer._apply_weight_decay([v for _, v in pairs])
    shards = {id(v): _shard_of(optimizer, v) for _, v in pairs}
    if pairs:
        places = list(shards.values())
        state = [(v, raw_value(v).shards[0].shape) for v in own_variables(optimizer) if is_sharded(v)]
        with own_shards(), with_shapes(state):
            optimizer._backend_update_step(
                [g for g, _ in pairs], places, optimizer.find_learning_rate(places)
            )
    return shards


def _update_by_whole(optimizer: Any, pairs: Pairs) -> dict[int, TensorInPlace]:
    """Let a rule that needs whole weights see whole state too, gathered when read; keep shards of the results."""
    state: dict[int, tuple[ShardedValue, TensorInPlace, tf.Tensor]] = {}

    def gathered(value: ShardedValue) -> TensorInPlace:
        if id(value) not in state:
            tensor = whole_value(value)
            state[id(value)] = value, TensorInPlace(value.key, tensor, value), tensor
        return state[id(value)][1]

    with see_through(gathered):
        with once_there_is_one(pairs):
            optimizer._apply_weight_decay([v for _, v in pairs])
        places = [
            gathered(raw_value(v))
            if is_sharded(v)
            else TensorInPlace(variable_key(optimizer, v), whole_value(raw_value(v)), raw_value(v))
            for _, v in pairs
        ]
        if pairs:
            optimizer._backend_update_step(
                [g for g, _ in pairs], places, optimizer.find_learning_rate(places)
            )
    for value, place, before in state.values():
        if place.tensor is not before:
            value.own().assign(own_part(place.tensor, value.layout, value.shape))
    return {
        id(v): TensorInPlace(place.key, own_part(place.tensor, layout_in_stages(v), v.shape), place)
        for (_, v), place in zip(pairs, places)
    }


def _shard_of(optimizer: Any, variable: Any) -> TensorInPlace:
    return TensorInPlace(variable_key(optimizer, variable), own_weight(variable), raw_value(variable))


def _average(optimizer: Any, shards: dict[int, TensorInPlace]) -> None:
    """Move the averages on, and make them the weights where that is due; add the shards of untouched variables."""
    if not optimizer.use_ema:
        return
    variables, averages = trained_variables(optimizer), averages_of(optimizer)
    every = {
        id(v): shards[id(v)] if id(v) in shards else _shard_of(optimizer, v)
        for v, a in zip(variables, averages)
        if a is not None
    }
    with own_shards():
        optimizer._update_model_variables_moving_average([every.get(id(v)) for v in variables])
    if not optimizer.ema_overwrite_frequency:
        return
    due = (optimizer.iterations + 1) % optimizer.ema_overwrite_frequency == 0
    for variable, average in zip(variables, averages):
        if average is not None:
            place = every[id(variable)]
            place.assign(tf.where(due, own_copy(average), place.tensor))
    shards.update(every)


def _write_weights(variables: Sequence[Any], shards: Sequence[tf.Tensor]) -> None:
    """Write new shards of weights, joined along the batch where they are smaller than what a replica stores."""
    stored = [raw_value(v).layout if is_sharded(v) else None for v in variables]
    layouts = [layout_in_stages(v) for v in variables]
    smaller = [None if own == layout else layout for own, layout in zip(stored, layouts)]
    for variable, value in zip(variables, join_flat_parts(shards, smaller, [v.shape for v in variables])):
        own_copy(variable).assign(value)


def _constrain(optimizer: Any, variables: Sequence[Any]) -> None:
    copied = [v for v in variables if not is_sharded(v)]
    for variable in variables:
        if is_sharded(variable):
            value = raw_value(variable)
            new = apply_constraint(variable, TensorInPlace(value.key, whole_value(value), value))
            value.own().assign(own_part(new, value.layout, value.shape))
    if copied:
        write = functools.partial(constrain, copied)
        (function_of_its_own(write) if has_user_code(optimizer, copied) else write)()
