"""Operations of a graph under construction: their order, their kinds, and copies of them."""

import threading
from typing import Any

import tensorflow as tf


def graph_of_replica() -> Any:
    """Return the graph in which this replica may call `merge_call`, and no nested one; None in eager mode."""
    graph: Any = getattr(threading.current_thread(), "graph", None)
    return graph if isinstance(graph, tf.Graph) and graph.building_function else None


def holds_numbers(tensor: Any) -> bool:
    """Return whether a tensor has floating point numbers, as activations and gradients do: no shape, index or condition."""
    return tensor.dtype.is_floating or tensor.dtype.is_complex


def number_of(op: tf.Operation) -> int:
    """Return number operations of one graph in the order in which they were made."""
    return op._id


def next_number(graph: tf.Graph) -> int:
    """Return more than the number of any operation in a graph, and no more than that of any to come."""
    return graph.version + 2


def holds_functions(op: tf.Operation) -> bool:
    """Return whether an operation calls functions: a branch, a loop, a call."""
    return any(attribute.type in ("func", "list(func)") for attribute in op.op_def.attr)


def copy_operation(
    op: tf.Operation, inputs: list[tf.Tensor], attributes: dict[str, Any] | None = None
) -> tuple[tf.Tensor, ...]:
    """Return the outputs of a copy of `op` in its graph, with other inputs; `attributes` are its own, if they are known."""
    graph: Any = op.graph
    again = graph._create_op_internal(
        op.type,
        inputs,
        name=op.name.rpartition("/")[2],
        attrs=dict(op.node_def.attr.items()) if attributes is None else attributes,
        op_def=op.op_def,
        compute_device=False,
    )
    if op.device:
        again._set_device(op.device)
    return tuple(again.outputs)
