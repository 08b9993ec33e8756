"""Variables that move into the strategy that uses them, and sums that replicas share."""

import contextlib
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
from .parameter_servers.shards import describe_as_whole, use_like_whole_ones
from .replicas import copies_of, in_replica_context, shares_variables
from .workers.agreement import first_local_replica


def move_variables(variables: Iterable[Any], strategy: tf.distribute.Strategy) -> bool:
    """Recreate the TensorFlow variable inside each Keras variable under `strategy`, unless it belongs to it already.

    The Keras variables stay the same objects and keep their values. Other objects are ignored. Return whether one was
    recreated. Context: eager; cross-replica.
    """
    moved = False
    with strategy.scope():
        prepare_variables()
        for variable in variables:
            if not isinstance(variable, keras.Variable):
                continue
            if strategy.extended.variable_created_in_scope(variable.value):
                describe_as_whole(raw_value(variable))  # it may have been made before the first model of ours
            else:
                make_again(variable)
                moved = True
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

    Where each replica has a copy, the first one gets the initial value, and what the host assigns. TensorFlow would add
    up the initial values of all copies, and write a quotient into each, which integers and truths do not have.

    Under any strategy, a Keras optimizer from outside the scope can be built in it. A model or an optimizer of ours calls
    this when it is created. It changes nothing without a strategy.
    """
    if tf.distribute.has_strategy():
        wrap("add_variable_from_reference", _add_in_scope)
    if tf.distribute.get_strategy().num_replicas_in_sync > 1 or shares_variables():
        wrap("_direct_assign", _direct_assign)
        wrap("_initialize", _initialize)
    use_like_whole_ones()


def _add_in_scope(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    move_into_scope(self)
    home = optimizer_strategy(self)
    if home is None or tf.distribute.has_strategy():
        return original(self, *args, **kwargs)
    with home.scope():  # a loop may enter no scope
        return original(self, *args, **kwargs)


def _direct_assign(original: Callable[..., Any], self: Any, value: Any) -> None:
    if self.aggregation == "sum" and shares_variables() and in_replica_context():
        value = tf.cast(value, raw_value(self).dtype)
        raw_value(self).assign_add(find_increment(raw_value(self), value))
    elif _is_in_parts(raw_value(self)) and not (tf.distribute.has_strategy() and in_replica_context()):
        _write_total(raw_value(self), value)
    else:
        original(self, value)


def _initialize(original: Callable[..., Any], self: Any, value: Any) -> None:
    def create(next_creator: Callable[..., Any], **arguments: Any) -> Any:
        if arguments["dtype"] == "bool":  # no sum: each replica has the same
            arguments["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
            arguments["synchronization"] = tf.VariableSynchronization.AUTO
        made = next_creator(**arguments)
        if _is_in_parts(made):
            _write_total(made, copies_of(made)[0])
        return made

    counts = (self.aggregation, self.synchronization) == ("sum", "on_read")
    with tf.variable_creator_scope(create) if counts else contextlib.nullcontext():
        original(self, value)
    describe_as_whole(raw_value(self))


def _is_in_parts(value: Any) -> bool:
    return isinstance(value, tf.distribute.DistributedValues) and sums_on_read(value)


def _write_total(variable: Any, value: Any) -> None:
    """Write a sum into the first of the copies that add up to it, and zeros into the others."""
    value = tf.cast(value, variable.dtype)
    is_first = first_local_replica(variable.distribute_strategy) == 0
    for number, copy in enumerate(copies_of(variable)):
        copy.assign(value if is_first and number == 0 else tf.zeros_like(value))
