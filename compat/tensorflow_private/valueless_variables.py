"""Variables with a shape and no value: graphs can read them, and gradient tapes identify sharded weights by them.

A model that is too large for this machine's memory can still be traced.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ..upstream_places import UninitializedVariable, record, tape

_SMALL = 4096  # elements; Python reads counters, rates and seeds while a model is made


@contextlib.contextmanager
def variables_without_memory() -> Iterator[None]:
    """Give large variables that an initializer makes in the block no value, so that only graphs can read them."""

    def create(next_creator: Callable[..., Any], **arguments: Any) -> Any:
        initial = arguments.get("initial_value")
        if not callable(initial):
            return next_creator(**arguments)
        with tf.__internal__.FuncGraph("initial_value").as_default():
            value: Any = tf.convert_to_tensor(initial(), arguments.get("dtype"))
        if (value.shape.num_elements() or 0) <= _SMALL:
            return next_creator(**arguments)
        name = arguments.get("name") or "Variable"
        return variable_without_value(value.shape, value.dtype, name, arguments.get("trainable"))

    with tf.variable_creator_scope(create):
        yield


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
