"""Weights of which each replica holds a shard, and how they come to be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...compat.tapes import record_as_read, variable_without_value
from ..replicas import in_replica_context
from ..workers.peer_monitor import monitored_collective
from .moments import whole_for_a_moment
from .travel import scattered_from_first
from .value import ShardedValue


class ShardedWeight(ShardedValue):
    """A weight in shards: whole where a step reads it, for as long as the step uses it.

    Its gradient is that of the whole weight. Arguments and attributes as `ShardedValue`.

    Context: eager.
    """

    trainable = True
    _should_act_as_resource_variable = True

    def __init__(self, strategy: tf.distribute.Strategy, shape: Sequence[int], dtype: Any, name: str) -> None:
        super().__init__(strategy, shape, dtype, name)
        self._known_to_tapes = variable_without_value(self.shape, self.dtype, name)

    @property
    def handle(self) -> Any:
        """By which a `tf.GradientTape` knows it."""
        return self._known_to_tapes.handle

    def read_value(self) -> tf.Tensor:
        """The whole weight, or what stands for it here."""
        if self.is_seen_through() or not (in_replica_context() and tf.distribute.has_strategy()):
            value = super().read_value()
        else:
            value = whole_for_a_moment(self.own().read_value, self.shape.as_list())
        record_as_read(self._known_to_tapes, value)
        return value

    def _export_to_saved_model_graph(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError(
            f"The weight {self.name!r} is held in parts, which a SavedModel cannot hold: save the model with "
            "`model.save(path)`, load it outside of the strategy's scope, and export what was loaded."
        )


def held_in_shards(
    strategy: tf.distribute.Strategy, variable: keras.Variable, value: Any
) -> ShardedWeight | None:
    """What a Keras variable that is being created under a strategy holds; None: what it would hold without sharding.

    Weights of rank two and more are held in shards. A vector has a small part of what its layer has, and to put it together
    would take as long.

    Args:
        strategy: whose weights are sharded.
        variable: has a shape if `value` is called.
        value: its first one: an array, a tensor, or a function that makes it. Over several workers the chief's counts.

    Context: eager, on every worker.
    """
    shape = tuple(variable.shape) if callable(value) else tuple(np.shape(value))
    trained = variable.trainable and tf.as_dtype(variable.dtype).is_floating
    if len(shape) < 2 or not trained or isinstance(value, tf.Variable) or not tf.executing_eagerly():
        return None
    weight = ShardedWeight(strategy, shape, variable.dtype, variable.name)
    first: Any = tf.cast(value() if callable(value) else value, weight.dtype)
    with monitored_collective():
        for shard, part in zip(weight.shards, scattered_from_first(strategy, first)):
            shard.assign(part)
    return weight
