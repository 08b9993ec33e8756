"""Gradient tapes: values that are recorded as the values of variables."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.eager import record, tape
from tensorflow.python.ops.resource_variable_ops import UninitializedVariable


def variable_without_value(shape: Any, dtype: Any, name: str) -> Any:
    """A variable with a handle, a shape and no value: gradient tapes identify the replaced variable by it."""
    return UninitializedVariable(trainable=True, shape=shape, dtype=dtype, name=name)


def record_as_read(variable: Any, value: tf.Tensor) -> None:
    """Gradient tapes of this thread take `value`, of the shape of `variable`, as the result of reading the variable."""
    tape.variable_accessed(variable)
    record.record_operation("ReadVariableOp", [value], [variable.handle], lambda gradient: [gradient])
