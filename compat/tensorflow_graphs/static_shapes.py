"""The shapes of the tensors of a graph for given shapes of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.handle_data_util import copy_handle_data, get_resource_handle_data, set_handle_data


class _Scratch(tf.Graph):
    """A graph whose imported operations get no devices and no control flow contexts, which takes most of the time."""

    def _add_new_tf_operations(self, compute_devices: bool = True) -> list[Any]:
        for operation in self.new_operations():
            tf.Operation._from_c_op(operation, self)
        return []


def with_static_shapes(
    graph: Any,
    shapes: Sequence[Sequence[int | None] | None],
    known: Mapping[str, tuple[Sequence[int | None] | None, np.ndarray | None]],
) -> dict[str, Any]:
    """Return the `TensorShape` of each tensor of a `FuncGraph` by name, as TensorFlow infers it from its inputs' shapes.

    The inputs include captures. The shape of a list of tensors is that of its elements. `known` has the shapes of other
    tensors by name, with their values or None.
    """
    scratch = _Scratch()
    with scratch.as_default():
        given = {t.name: _stand_in(t, shape, None) for t, shape in zip(graph.inputs, shapes)}
        for name, (shape, value) in known.items():
            given[name] = _stand_in(graph.get_tensor_by_name(name), shape, value)
        definition = graph.as_graph_def()
        for node in definition.node:
            node.attr.pop("_class", None)  # can name operations of other graphs
        if writes := [node for node in definition.node if node.op == "AssignVariableOp"]:
            any_variable = tf.compat.v1.placeholder(tf.resource, name="any_variable")
            for node in writes:  # the variable can be smaller than these inputs: a queue of the last keys
                node.input[0] = any_variable.name
            given[any_variable.name] = any_variable
        tf.graph_util.import_graph_def(definition, input_map=given, name="")
        found = {tensor.name: _shape(tensor) for op in scratch.get_operations() for tensor in op.outputs}
    return found | {name: _shape(tensor) for name, tensor in given.items()}


def _stand_in(tensor: Any, shape: Any, value: np.ndarray | None) -> Any:
    """A tensor in the current graph with a shape, and with a value where it is known."""
    if value is not None:
        return tf.constant(value, tensor.dtype, name="known")
    if tensor.dtype != tf.variant:
        placeholder = tf.compat.v1.placeholder(tensor.dtype, shape, "given")
        copy_handle_data(tensor, placeholder)
        return placeholder
    placeholder = tf.compat.v1.placeholder(tensor.dtype, [], "given")
    described = get_resource_handle_data(tensor)
    if shape is not None and len(described.shape_and_type) == 1:
        described.shape_and_type[0].shape.CopyFrom(tf.TensorShape(shape).as_proto())
    set_handle_data(placeholder, described)
    return placeholder


def _shape(tensor: Any) -> tf.TensorShape:
    """The shape of a tensor, or of the elements of a list."""
    if tensor.dtype != tf.variant:
        return tensor.shape
    described = get_resource_handle_data(tensor).shape_and_type
    return tf.TensorShape(described[0].shape if len(described) == 1 else None)
