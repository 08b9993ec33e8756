"""Stages 4 and 5 on shards: each replica updates its shard of every weight, then the new weights are all-gathered.

In stage 4, operations on single numbers run on the shards; norms are partial sums of squares, all-reduced.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...compat.keras_private.optimizers import (
    averages_of,
    overwritten_by_gradient,
    own_variables,
    trained_variables,
    variable_key,
)
from ...compat.keras_private.variables import raw_value, with_shapes
from ...distribute.replicas import function_of_its_own, local_copy
from ...distribute.sharding.collectives import all_gather, own_shard
from ...distribute.sharding.sharded_value import (
    ShardedValue,
    TensorInPlace,
    own_copy,
    own_part,
    own_shards,
    seen_through,
)
from ..stages.aggregators import without_overwriting
from ..stages.call_options import frozen_iterations
from ..stages.clipping import norms_over_shards
from ..stages.run_stages import clip, constrain, once_there_is_one, transform
from ..stages.sparse_gradients import Pairs, is_sparse
from ..stages.transformers import AddDecayedWeights, ClipByGlobalNorm, ClipByNorm, ClipByValue
from ..stages.user_code import has_user_code, is_elementwise
from ..update_rules.replica_rule import ReplicaRule


def transform_and_apply(optimizer: Any, pairs: Pairs) -> None:
    """Stages 4 and 5, as `run_stages.Stages.transform_and_apply`, of sharded gradients. Context: replica."""
    with frozen_iterations(optimizer, tf.identity(tf.convert_to_tensor(optimizer.iterations))):
        pairs, overwriting = without_overwriting(pairs)
        for gradient, variable in overwriting:
            optimizer.assign(variable, gradient)
        elementwise = is_elementwise(optimizer)
        pairs = _transformed(optimizer, pairs, elementwise)
        with once_there_is_one(pairs):
            optimizer.decay_weights([v for _, v in pairs])
        shards = (_updated_shards if elementwise else _updated_by_whole)(optimizer, pairs)
        _average(optimizer, shards)
        variables = [v for v in trained_variables(optimizer) if id(v) in shards]
        _write_weights(variables, [shards[id(v)].tensor for v in variables])
        _constrain(optimizer, [v for _, v in pairs if v.constraint is not None])


def _transformed(optimizer: Any, pairs: Pairs, to_shards: bool) -> Pairs:
    """Stage 4, to shards or to whole gradients."""
    own_clipping = type(optimizer)._clip_gradients is not ReplicaRule._clip_gradients
    if own_clipping or any(type(t) not in _ON_SHARDS for t in optimizer.gradient_transformers):
        pairs = transform(optimizer, _gathered(pairs))
        return cut(pairs) if to_shards else pairs
    pairs = [pair if not is_sparse(pair[0]) else cut([pair])[0] for pair in pairs]
    with norms_over_shards():
        for transformer in optimizer.gradient_transformers:
            decays = type(transformer) is AddDecayedWeights
            pairs = transformer.decayed(pairs, own_part) if decays else transformer(pairs)
        pairs = clip(optimizer, pairs)
    return pairs if to_shards else _gathered(pairs)


_ON_SHARDS = (ClipByGlobalNorm, ClipByNorm, ClipByValue, AddDecayedWeights)
"""The ready pieces that need no whole gradient."""


def cut(pairs: Pairs) -> Pairs:
    """This replica's shard of each whole gradient."""
    return [(g if overwritten_by_gradient(v) else own_shard(g, list(v.shape)), v) for g, v in pairs]


def _gathered(pairs: Pairs) -> Pairs:
    """The whole gradients; sparse ones are whole already."""
    dense = [(g, v) for g, v in pairs if not is_sparse(g)]
    whole = iter(all_gather([g for g, _ in dense], [list(v.shape) for _, v in dense]))
    return [(g if is_sparse(g) else next(whole), v) for g, v in pairs]


def _updated_shards(optimizer: Any, pairs: Pairs) -> dict[int, TensorInPlace]:
    """The rule on this replica's shards of weights, gradients and state; the new shards by the id of their variable."""
    shards = {id(v): _shard_of(optimizer, v) for _, v in pairs}
    if pairs:
        places = list(shards.values())
        state = [(v, raw_value(v).shards[0].shape) for v in own_variables(optimizer) if _in_shards(v)]
        with own_shards(), with_shapes(state):
            optimizer._backend_update_step([g for g, _ in pairs], places, optimizer.learning_rate_for(places))
    return shards


def _updated_by_whole(optimizer: Any, pairs: Pairs) -> dict[int, TensorInPlace]:
    """A rule that needs whole weights sees whole state too, gathered where it reads it; shards of the results are kept."""
    places = [
        TensorInPlace(variable_key(optimizer, v), tf.convert_to_tensor(local_copy(v)), v.name)
        for _, v in pairs
    ]
    state: dict[int, tuple[ShardedValue, TensorInPlace, tf.Tensor]] = {}

    def gathered(value: ShardedValue) -> TensorInPlace:
        if id(value) not in state:
            tensor = all_gather([value.own().read_value()], [value.shape.as_list()])[0]
            state[id(value)] = value, TensorInPlace(value.key, tensor, value.name), tensor
        return state[id(value)][1]

    if pairs:
        with seen_through(gathered):
            optimizer._backend_update_step([g for g, _ in pairs], places, optimizer.learning_rate_for(places))
    for value, place, before in state.values():
        if place.tensor is not before:
            value.own().assign(own_shard(place.tensor))
    return {
        id(v): TensorInPlace(place.key, own_shard(place.tensor), place.name)
        for (_, v), place in zip(pairs, places)
    }


def _shard_of(optimizer: Any, variable: Any) -> TensorInPlace:
    return TensorInPlace(variable_key(optimizer, variable), own_part(variable), variable.name)


def _average(optimizer: Any, shards: dict[int, TensorInPlace]) -> None:
    """Moves the averages on, and makes them the weights where that is due; adds the shards of untouched variables."""
    if not optimizer.use_ema:
        return
    variables, averages = trained_variables(optimizer), averages_of(optimizer)
    every = {
        id(v): shards.get(id(v)) or _shard_of(optimizer, v)
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
    """Writes new shards of weights: sharded weights keep them, of the others the whole is all-gathered."""
    new = list(zip(variables, shards))
    for variable, shard in new:
        if _in_shards(variable):
            own_copy(variable).assign(shard)
    copied = [(v, shard) for v, shard in new if not _in_shards(v)]
    wholes = all_gather([shard for _, shard in copied], [list(v.shape) for v, _ in copied])
    for (variable, _), value in zip(copied, wholes):
        local_copy(variable).assign(value)


def _in_shards(variable: Any) -> bool:
    return isinstance(raw_value(variable), ShardedValue)


def _constrain(optimizer: Any, variables: Sequence[Any]) -> None:
    copied = [v for v in variables if not _in_shards(v)]
    for variable in variables:
        if _in_shards(variable):
            value = raw_value(variable)
            value.assign(variable.constraint(value.read_value()))
    if copied:
        write = functools.partial(constrain, copied)
        (function_of_its_own(write) if has_user_code(optimizer, copied) else write)()
