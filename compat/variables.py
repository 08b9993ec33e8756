"""Keras variables, the TensorFlow variables in them, and the scopes that collect writes to them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

_SCOPE = "stateless_scope"


def raw_value(variable: Any) -> Any:
    """The TensorFlow variable in a Keras variable, whatever scope notes another value; else `variable` itself."""
    return getattr(variable, "_value", variable)


def stored_dtype(variable: Any) -> Any:
    """The dtype that a Keras variable has in memory; in a layer under a mixed policy reading it gives another one."""
    return getattr(raw_value(variable), "dtype", None) or variable.dtype


def autocast(variable: keras.Variable, value: Any) -> Any:
    """`value` in the dtype that reading `variable` gives here."""
    return variable._maybe_autocast(value)


def stateless_scope() -> keras.StatelessScope | None:
    """The `keras.StatelessScope` that this thread collects writes in, or None."""
    return global_state.get_global_attribute(_SCOPE)


@contextlib.contextmanager
def direct_writes() -> Iterator[None]:
    """Writes to Keras variables reach the variables, also where a `keras.StatelessScope` would collect them."""
    scope = stateless_scope()
    global_state.set_global_attribute(_SCOPE, None)
    try:
        yield
    finally:
        global_state.set_global_attribute(_SCOPE, scope)


def make_again(variable: keras.Variable) -> None:
    """Makes the TensorFlow variable inside `variable` again, with its value and id, under the current strategy."""
    old, value = variable._value, variable.numpy()
    variable._value = None
    variable._initialize(tf.constant(value, variable.dtype))
    getattr(variable._value, "_primary", variable._value)._unique_id = old._unique_id


def move_to_device(variable: Any, device: str) -> None:
    """Makes the TensorFlow variable inside a Keras variable again on `device`, with its value and its id.

    Optimizers that were built before know their variables by that id.
    """
    old = variable._value
    if isinstance(old, tf.Variable) and old.device == device:
        return
    with tf.init_scope(), tf.device(device):
        variable._value = tf.Variable(
            old,
            dtype=old.dtype,
            trainable=old.trainable,
            name=variable.name,
            aggregation=old.aggregation,
            synchronization=old.synchronization,
        )
    variable._value._unique_id = old._unique_id


@contextlib.contextmanager
def holding(variable: keras.Variable, value: Any) -> Iterator[None]:
    """While this is entered the Keras variable stands for another TensorFlow variable."""
    own = variable._value
    variable._value = value
    try:
        yield
    finally:
        variable._value = own


def plain_variable(value: Any) -> Any:
    """A variable of this process alone, whatever strategy's scope it is made in: one that holds no part of a model."""
    return ResourceVariable(value, trainable=False)


def is_read_together(value: Any) -> bool:
    """Whether each replica writes its own copy of a variable, put together only when it is read."""
    return getattr(value, "synchronization", None) == tf.VariableSynchronization.ON_READ


def sums_on_read(value: Any) -> bool:
    """Whether the copies of a distributed variable are parts of a sum."""
    aggregation = getattr(value, "aggregation", None)
    return is_read_together(value) and aggregation == tf.VariableAggregation.SUM
