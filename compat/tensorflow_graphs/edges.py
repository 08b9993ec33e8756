"""The edges of a graph under construction: which operations read a tensor, in what order, and how to redirect them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

OF_A_GRADIENT = "gradient_tape/"
"""Part of the names of operations that `tf.GradientTape.gradient` adds to a graph."""

_NUMBERS = "_unisono_numbers"  # attribute of a graph; a collection would be handed to the graphs inside of it


def graph_of_replica() -> Any:
    """The graph in which this replica may call `merge_call`: the one in which its strategy runs it; None in eager mode.

    A function, branch or loop that the replica's code traces has a nested graph.
    """
    graph: Any = getattr(threading.current_thread(), "graph", None)
    return graph if isinstance(graph, tf.Graph) and graph.building_function else None


def is_of_a_gradient(op: tf.Operation) -> bool:
    """Whether `tf.GradientTape.gradient` made this operation."""
    return OF_A_GRADIENT in op.name


def holds_numbers(tensor: Any) -> bool:
    """Whether a tensor has floating point numbers, as activations and gradients do: no shape, index or condition."""
    return tensor.dtype.is_floating or tensor.dtype.is_complex


def number_of(op: tf.Operation) -> float:
    """Number operations of one graph in the order in which they were made, or as `made_in_backward_pass` says.

    The dependencies of an operation have smaller numbers.
    """
    return getattr(op.graph, _NUMBERS, {}).get(op.name, op._id)


def next_number(graph: tf.Graph) -> int:
    """More than the number of any operation in a graph, and no more than that of any to come."""
    return graph.version + 2


@contextlib.contextmanager
def made_in_backward_pass(graph: tf.Graph, before: tf.Operation) -> Iterator[None]:
    """Operations made inside belong to the backward pass, and are numbered right before one of its operations."""
    if not hasattr(graph, _NUMBERS):
        setattr(graph, _NUMBERS, {})
    count = len(graph.get_operations())
    with graph.as_default(), tf.name_scope(OF_A_GRADIENT + "again"):
        yield
    made = graph.get_operations()[count:]
    end = number_of(before)
    getattr(graph, _NUMBERS).update(
        {op.name: end - 1 + (index + 1) / (len(made) + 1) for index, op in enumerate(made)}
    )


def newly_needed(ops: Iterable[tf.Operation], first: float, known: set[str]) -> list[tf.Operation]:
    """The operations that must have run before `ops`, including `ops`.

    These are the sources of their inputs, their control inputs, and the automatic control dependencies that TensorFlow adds
    when the graph is finished: earlier operations with an effect on the same resource, or on no resource. All operations
    made so far count, except those with numbers below `first` and those with `known` names; the result's names are added.
    """
    found, todo, resources = [], list(ops), set[str]()
    while todo:
        op = todo.pop()
        if op.name not in known and number_of(op) >= first:
            known.add(op.name)
            found.append(op)
            todo.extend(_waited_for(op, resources))
    return found


def _waited_for(op: tf.Operation, resources: set[str]) -> Iterator[tf.Operation]:
    """Yield what `op` waits for; `resources` are those whose operations were found before, and it adds others."""
    for tensor in op.inputs:
        yield tensor.op
        if tensor.dtype == tf.resource and tensor.name not in resources:
            resources.add(tensor.name)
            yield from tensor.consumers()
    yield from op.control_inputs
    if _affects_no_resource(op) and "" not in resources:
        resources.add("")
        yield from filter(_affects_no_resource, op.graph.get_operations())


def _affects_no_resource(op: tf.Operation) -> bool:
    return op._is_stateful and all(tensor.dtype != tf.resource for tensor in op.inputs)


def let_wait(op: tf.Operation, for_op: tf.Operation) -> None:
    """Lets an operation run after another one, which may not depend on it."""
    op._add_control_input(for_op)


def read_instead(op: tf.Operation, old: tf.Tensor, new: tf.Tensor) -> None:
    """Lets `op` read `new` wherever it reads `old`; nothing that `new` depends on may depend on `op`."""
    for index, tensor in enumerate(op.inputs):
        if tensor is old:
            op._update_input(index, new)


def is_stateless(op: tf.Operation) -> bool:
    """Whether an operation computes its outputs from its inputs alone, and holds no function."""
    return not (op.op_def.is_stateful or holds_functions(op))


def holds_functions(op: tf.Operation) -> bool:
    """Whether an operation calls functions: a branch, a loop, a call."""
    return any(attribute.type in ("func", "list(func)") for attribute in op.op_def.attr)


def made_again(
    op: tf.Operation, inputs: list[tf.Tensor], attributes: dict[str, Any] | None = None
) -> tuple[tf.Tensor, ...]:
    """Return the outputs of a copy of `op` in its graph, on its device, with other inputs.

    `attributes` are those of `op`, if they have been read before.
    """
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
