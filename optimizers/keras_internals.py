"""Everything private of Keras that the optimizers touch. `tests/unit/test_optimizers_internals.py` guards each of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
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
