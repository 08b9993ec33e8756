"""Variables that move into the strategy that uses them, and sums that replicas share."""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import tensorflow as tf

from ..compat.keras_private.optimizers import (
    call_count,
    optimizer_strategy,
    own_learning_rate,
    own_variables,
    set_strategy,
)
from ..compat.keras_private.variables import find_increment, make_again, raw_value, sums_on_read
from ..compat.patches import wrap
from .parameter_servers.shards import use_like_whole_ones
from .replicas import copies_of, in_replica_context, shares_variables
from .workers.agreement import first_local_replica


def move_variables(variables: Iterable[Any], strategy: tf.distribute.Strategy) -> bool:
    """Recreate the TensorFlow variable inside each Keras variable under `strategy`, unless it belongs to it already.

    The Keras variables stay the same objects and keep their values. Other objects are ignored. Return whether one was
    recreated. Context: eager; cross-replica.
    """
    moved = False
    with strategy.scope():
        for variable in variables:
            movable = isinstance(variable, keras.Variable)
            if movable and not strategy.extended.variable_created_in_scope(variable.value):
                make_again(variable)
                moved = True
                if sums_on_read(raw_value(variable)):  # each copy has the value, and they are added
                    for number, copy in enumerate(copies_of(variable), first_local_replica(strategy)):
                        if number > 0:
                            copy.assign(tf.zeros_like(copy))
    return moved


def move_to_strategy(optimizer: Any, strategy: tf.distribute.Strategy) -> None:
    """Move the counters and the state of an optimizer into `strategy.scope()`. Context: in that scope."""
    if optimizer_strategy(optimizer) is not strategy:
        set_strategy(optimizer, strategy)
        if tf.distribute.has_strategy():
            variables = (*own_variables(optimizer), call_count(optimizer), own_learning_rate(optimizer))
            move_variables(variables, strategy)


def move_into_scope(optimizer: Any) -> None:
    """Move an optimizer into the scope of a strategy in which it is built, if it is."""
    if tf.distribute.has_strategy():
        move_to_strategy(optimizer, tf.distribute.get_strategy())


def prepare_variables() -> None:
    """Let replicas that share variables, and asynchronous workers, add to variables that are declared to be sums.

    Metrics count with such variables. Keras assigns the old value plus a number: several replicas would add the old value
    several times, and a worker would overwrite the addition of another. In a step of ours writes are collected before this.

    Under any strategy, a Keras optimizer from outside the scope can be built in it. A model or an optimizer of ours calls
    this when it is created. It changes nothing without a strategy.
    """
    if tf.distribute.has_strategy():
        wrap("add_variable_from_reference", _add_in_scope)
    if shares_variables():
        wrap("_direct_assign", _direct_assign)
    use_like_whole_ones()


def _add_in_scope(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    move_into_scope(self)
    return original(self, *args, **kwargs)


def _direct_assign(original: Callable[..., Any], self: Any, value: Any) -> None:
    if self.aggregation == "sum" and shares_variables() and in_replica_context():
        value = tf.cast(value, raw_value(self).dtype)
        raw_value(self).assign_add(find_increment(raw_value(self), value))
    else:
        original(self, value)
