"""Reads of sharded variables by one worker alone, as it needs them to write a file."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from ...compat.keras_private.variables import raw_value
from .sharded_value import ShardedValue, TensorInPlace, see_through


@contextlib.contextmanager
def read_together(variables: Iterable[Any], here: bool = True) -> Iterator[None]:
    """Let reads of the sharded `variables` in this thread return, inside, whole values that were gathered before.

    So one worker alone can write a file: all workers enter, and those without `here` keep nothing.

    Context: eager, on every worker.
    """
    found: dict[int, TensorInPlace] = {}
    for variable in variables:
        value = raw_value(variable)
        if isinstance(value, ShardedValue):
            with tf.init_scope():
                tensor = value.read_value()
            if here:
                found[id(value)] = TensorInPlace(value.key, tensor, value)
    with see_through(lambda value: found[id(value)]) if found else contextlib.nullcontext():
        yield
