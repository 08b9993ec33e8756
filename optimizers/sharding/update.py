"""Stages 4 and 5 on shards: each replica updates its shard of every weight, then all put the new weights together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...compat.optimizers import (
    averages_of,
    overwritten_by_gradient,
    own_variables,
    trained_variables,
    variable_key,
)
from ...compat.variables import raw_value, with_shapes
from ...distribute.replicas import function_of_its_own, local_copy
from ...distribute.sharding.layout import own_shard
from ...distribute.sharding.travel import all_gather
from ...distribute.sharding.value import (
    ShardedValue,
    TensorInPlace,
    own_copy,
    own_part,
    own_shards,
    seen_through,
)
from ..call_options import frozen_iterations
from ..shard_updates import is_elementwise
from ..stages.run_stages import once_there_is_one, transform
from ..stages.users_code import has_code_of_users
from .transform import needs_whole_gradients, transform_shards

Pairs = list[tuple[Any, Any]]


def transform_and_apply(optimizer: Any, pairs: Pairs, *, of_shards: bool) -> None:
    """Stages 4 and 5, as `run_stages.transform_and_apply` does them on whole gradients.

    Args:
        optimizer: built.
        pairs: gradients, equal on all replicas or each replica's shards, and variables.
        of_shards: whether dense gradients are shards.

    Context: replica.
    """
    with frozen_iterations(optimizer, tf.identity(tf.convert_to_tensor(optimizer.iterations))):
        for gradient, variable in pairs:
            if overwritten_by_gradient(variable):
                optimizer.assign(variable, gradient)
        pairs = [(g, v) for g, v in pairs if not overwritten_by_gradient(v)]
        elementwise = is_elementwise(optimizer)
        pairs, are_shards = _transformed(optimizer, pairs, of_shards, elementwise)
        with once_there_is_one(pairs):
            optimizer.decay_weights([v for _, v in pairs])
        if elementwise:
            shards = _updated_shards(optimizer, pairs if are_shards else _cut(pairs))
        else:
            shards = _updated_by_whole(optimizer, pairs)
        _average(optimizer, shards)
        variables = [v for v in trained_variables(optimizer) if id(v) in shards]
        _put_together(variables, [shards[id(v)].tensor for v in variables])
        _constrain(optimizer, [v for _, v in pairs])


def _transformed(optimizer: Any, pairs: Pairs, of_shards: bool, elementwise: bool) -> tuple[Pairs, bool]:
    """Stage 4, and whether its results are shards."""
    if not of_shards:
        return transform(optimizer, pairs), False
    whole_wanted = needs_whole_gradients(optimizer)
    if not whole_wanted:
        pairs = transform_shards(optimizer, _cut_slices(pairs))
        return (pairs, True) if elementwise else (_gathered(pairs), False)
    return transform(optimizer, _gathered(pairs)), False


def _cut_slices(pairs: Pairs) -> Pairs:
    return [(own_shard(g, list(v.shape)) if isinstance(g, tf.IndexedSlices) else g, v) for g, v in pairs]


def _cut(pairs: Pairs) -> Pairs:
    return [(own_shard(g, list(v.shape)), v) for g, v in pairs]


def _gathered(pairs: Pairs) -> Pairs:
    """The whole gradients; slices are whole already."""
    dense = [(g, v) for g, v in pairs if not isinstance(g, tf.IndexedSlices)]
    whole = iter(all_gather([g for g, _ in dense], [list(v.shape) for _, v in dense]))
    return [(g if isinstance(g, tf.IndexedSlices) else next(whole), v) for g, v in pairs]


def _updated_shards(optimizer: Any, pairs: Pairs) -> dict[int, TensorInPlace]:
    """The rule on this replica's shards of weights, gradients and slots; the new shards by the id of their variable."""
    shards = {id(v): _shard_of(optimizer, v) for _, v in pairs}
    if pairs:
        places = list(shards.values())
        slots = [(v, raw_value(v).shards[0].shape) for v in own_variables(optimizer) if _in_shards(v)]
        with own_shards(), with_shapes(slots):
            optimizer._backend_update_step([g for g, _ in pairs], places, optimizer.learning_rate_for(places))
    return shards


def _updated_by_whole(optimizer: Any, pairs: Pairs) -> dict[int, TensorInPlace]:
    """A rule that looks at whole weights sees whole slots too, gathered where it reads them; its shards are kept."""
    places = [
        TensorInPlace(variable_key(optimizer, v), tf.convert_to_tensor(local_copy(v)), v.name)
        for _, v in pairs
    ]
    slots: dict[int, tuple[ShardedValue, TensorInPlace, tf.Tensor]] = {}

    def gathered(value: ShardedValue) -> TensorInPlace:
        if id(value) not in slots:
            tensor = all_gather([value.own().read_value()], [value.shape.as_list()])[0]
            slots[id(value)] = value, TensorInPlace(value.key, tensor, value.name), tensor
        return slots[id(value)][1]

    if pairs:
        with seen_through(gathered):
            optimizer._backend_update_step([g for g, _ in pairs], places, optimizer.learning_rate_for(places))
    for value, place, before in slots.values():
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


def _put_together(variables: Sequence[Any], shards: Sequence[tf.Tensor]) -> None:
    """Writes the weights of which each replica has a new shard: the shards of those that stay in shards, else the whole."""
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
    constrained = [v for v in variables if v.constraint is not None]
    copied = [v for v in constrained if not _in_shards(v)]
    for variable in constrained:
        if _in_shards(variable):
            value = raw_value(variable)
            value.assign(variable.constraint(value.read_value()))

    def write() -> None:
        for variable in copied:
            copy = local_copy(variable)
            copy.assign(variable.constraint(copy))

    if copied:
        (function_of_its_own(write) if has_code_of_users(optimizer, copied) else write)()
