"""Variables with a shape and no value: graphs can read them, and gradient tapes identify sharded weights by them."""

from typing import Any

import tensorflow as tf

from ..upstream_places import UninitializedVariable, record, tape


def variable_without_value(shape: Any, dtype: Any, name: str, trainable: Any = True) -> Any:
    """Return a variable with a handle, a shape and no value."""
    return UninitializedVariable(trainable=trainable, shape=shape, dtype=dtype, name=name)


def read_unrecorded(variable: Any) -> Any:
    """Read a variable in a graph; gradient tapes see it only by `record_as_read`."""
    with record.stop_recording():
        return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def record_as_read(variable: Any, value: tf.Tensor) -> None:
    """Let gradient tapes of this thread take `value`, of the shape of `variable`, as the result of reading it."""
    tape.variable_accessed(variable)
    record.record_operation("ReadVariableOp", [value], [variable.handle], lambda gradient: [gradient])
