"""Which variables of an optimizer are held in shards, and their creation."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.optimizers import overwritten_by_gradient
from ...compat.variables import raw_value
from ...distribute.sharding.existing import whole_slots
from ...distribute.sharding.levels import level_of
from ...distribute.sharding.value import created_in_shards, shard_variable
from ..building import inner_optimizers, run_in_thread


def created_as_shards(reference: Any, initializer: Any) -> contextlib.AbstractContextManager[Any]:
    """Around the creation of a slot: it is a sharded variable if its strategy says so.

    Args:
        reference: the trained variable.
        initializer: of the slot.

    Context: eager, in the scope of the strategy.
    """
    strategy = getattr(raw_value(reference), "distribute_strategy", None)
    if strategy is None or level_of(strategy) is None or overwritten_by_gradient(reference):
        return contextlib.nullcontext()
    return created_in_shards(strategy, list(reference.shape), initializer)


def ensure_sharded(optimizer: Any) -> None:
    """Shards the slots of a built optimizer that were made before it was ours, or under another strategy.

    Context: any; in a trace the variables are made in another thread.
    """
    strategy = tf.distribute.get_strategy()
    late = [v for each in (optimizer, *inner_optimizers(optimizer)) for v in whole_slots(each)]
    if late:
        run_in_thread(lambda: _shard(late, strategy))


def _shard(variables: Sequence[keras.Variable], strategy: tf.distribute.Strategy) -> None:
    for variable in variables:
        shard_variable(variable, strategy)
