"""Variables that are whole on every replica, and that sharding would leave so."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from ...compat.optimizers import (
    call_count,
    overwritten_by_gradient,
    own_learning_rate,
    own_variables,
    trained_variables,
)
from ...compat.variables import raw_value
from .value import ShardedValue


def check_nothing_exists(strategy: tf.distribute.Strategy, level: str) -> None:
    """Rejects a level that comes after the variables that it is to shard: compiled steps know them as they are.

    Raises:
        ValueError: a live optimizer has whole slots, or with "weights" a live variable is whole.
    """
    if strategy.num_replicas_in_sync == 1:
        return
    gc.collect()  # what nobody uses any more counts for nothing
    for each in gc.get_objects():
        late = next(_whole_under(strategy, each, level), None)
        if late is not None:
            when = "the model is made" if level == "weights" else "the optimizer is built, which `fit` does"
            raise ValueError(
                f"`sharded(strategy, level={level!r})` comes too late: {late.path!r} exists already, and would stay whole "
                f"on each replica. Call it before {when}; for what exists make another strategy and a new model."
            )


def _whole_under(strategy: tf.distribute.Strategy, owner: Any, level: str) -> Iterator[keras.Variable]:
    kind = type(owner)
    found: list[keras.Variable] = []
    if issubclass(kind, keras.optimizers.Optimizer) and vars(owner).get("built"):
        found = whole_slots(owner)
    elif level == "weights" and issubclass(kind, keras.Variable) and is_shardable(owner):
        found = [owner]
    return (v for v in found if getattr(raw_value(v), "distribute_strategy", None) is strategy)


def is_shardable(variable: keras.Variable) -> bool:
    """Whether a variable is a weight that the level "weights" shards: a vector has a small part of what its layer has."""
    sharded = isinstance(raw_value(variable), ShardedValue)
    floating = tf.as_dtype(variable.dtype).is_floating
    return bool(variable.trainable) and floating and len(variable.shape or ()) >= 2 and not sharded


def whole_slots(optimizer: Any) -> list[keras.Variable]:
    """The slots that should be sharded and are not: what has the shape of a trained variable, but for scalars."""
    shapes = {tuple(v.shape) for v in trained_variables(optimizer) if not overwritten_by_gradient(v)} - {()}
    others = {id(call_count(optimizer)), id(own_learning_rate(optimizer))}
    return [
        v
        for v in own_variables(optimizer)
        if tuple(v.shape) in shapes and id(v) not in others and not isinstance(raw_value(v), ShardedValue)
    ]
