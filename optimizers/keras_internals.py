"""Everything private of Keras that the optimizers touch. `tests/unit/test_optimizers_internals.py` guards each of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src import api_export
from keras.src.backend.common import global_state
from keras.src.saving import object_registration

_SCOPE = "stateless_scope"


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


def track_apart(optimizer: keras.optimizers.Optimizer, name: str, variable: keras.Variable) -> None:
    """Makes `variable` an attribute that `tf.train.Checkpoint` saves, but none of Keras' own list of variables."""
    vars(optimizer)[name] = variable
    optimizer._track_trackable(variable, name, overwrite=True)


def move_variable(variable: keras.Variable) -> None:
    """Makes the TensorFlow variable inside `variable` again, with its value, under the current strategy."""
    value = variable.numpy()
    variable._value = None
    variable._initialize(tf.constant(value))


def unpickle(buffer: Any) -> keras.optimizers.Optimizer:
    """The reverse of Keras' own `__reduce__`, without the class that it was called on."""
    return keras.optimizers.Optimizer._unpickle_model(buffer)


def overwritten_by_gradient(variable: Any) -> bool:
    """Whether `variable` takes its "gradient" as its new value, as the scales of Keras' float8 layers do."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


def save_as(cls: type, original: type) -> None:
    """Makes instances of `cls` serialize as instances of `original` do: plain Keras then opens what we save."""
    name = api_export.get_name_from_symbol(original)
    if name is not None:
        api_export.REGISTERED_OBJS_TO_NAMES[cls] = name
    elif original in object_registration.GLOBAL_CUSTOM_NAMES:
        object_registration.GLOBAL_CUSTOM_NAMES[cls] = object_registration.GLOBAL_CUSTOM_NAMES[original]
