"""Which operations of a graph a gradient tape has made, known by identity, whatever they are called."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ..thread_context import tracing
from ..upstream_places import gradient_function, op_callbacks, pywrap_tfe

_OF_A_GRADIENT = "_unisono_of_a_gradient"  # attribute of an operation
OWN_GRADIENTS: dict[str, Callable[[Any, Any, Any], list[Any] | None]] = {}
"""In a step that is partitioned, by the type of an operation: `fn(attributes, inputs, gradient)`; None: TensorFlow's."""


def is_of_a_gradient(op: tf.Operation) -> bool:
    """Return whether `tf.GradientTape.gradient` made this operation."""
    return hasattr(op, _OF_A_GRADIENT)


def count_as_gradient(op: tf.Operation) -> None:
    """Let an operation count as one that a tape has made."""
    setattr(op, _OF_A_GRADIENT, True)


@contextlib.contextmanager
def count_inside_as_gradient() -> Iterator[None]:
    """Let the operations that the current graph gets inside count as those that a tape has made."""
    current: Any = tf.compat.v1.get_default_graph()
    before = current.version

    def mark(
        kind: str, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        if graph is current and outputs and outputs[0].op._id > before:
            count_as_gradient(outputs[0].op)

    op_callbacks.add_op_callback(mark)
    try:
        yield
    finally:
        op_callbacks.remove_op_callback(mark)


def _differentiate(*arguments: Any) -> Any:
    """Call the gradient function of an operation, as a tape does, and mark the operations that it adds to the graph."""
    if tf.executing_eagerly():
        return gradient_function(*arguments)
    recorder = tracing.recorder
    recording = contextlib.nullcontext() if recorder is None else recorder.of_gradient(arguments[-1])
    with recording, count_inside_as_gradient():
        own = OWN_GRADIENTS.get(arguments[0]) if tracing.partitions else None
        found = None if own is None else own(arguments[1], arguments[3], arguments[5][0])
        return gradient_function(*arguments) if found is None else found


# TensorFlow's C++ code calls the function that was registered last.
pywrap_tfe.TFE_Py_RegisterGradientFunction(_differentiate)
