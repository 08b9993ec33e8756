"""Which distributed variables code writes, whatever method, function, branch or loop does it."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ..upstream_places import RESOURCE_READ_OPS, get_read_write_resource_inputs, op_callbacks
from .one_device import find_distributed_variable


@contextlib.contextmanager
def note_writes() -> Iterator[Callable[[], list[Any]]]:
    """Yield a function that returns the distributed variables written since its last call, by graphs or eagerly."""
    graph, eager = tf.compat.v1.get_default_graph(), tf.executing_eagerly()
    begin, handles = 0 if eager else len(graph.get_operations()), list[Any]()

    def note(
        kind: str, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        if graph is None and kind not in RESOURCE_READ_OPS:
            handles.extend(tensor for tensor in inputs if tensor.dtype == tf.resource)

    def written() -> list[Any]:
        nonlocal begin
        made = [] if eager else graph.get_operations()[begin:]
        begin += len(made)
        found = handles + [
            _find_captured(each) for op in made for each in get_read_write_resource_inputs(op)[1]
        ]
        handles.clear()
        variables = map(find_distributed_variable, found)
        return list({id(variable): variable for variable in variables if variable is not None}.values())

    if eager:
        op_callbacks.add_op_callback(note)
    try:
        yield written
    finally:
        if eager:
            op_callbacks.remove_op_callback(note)


def _find_captured(tensor: Any) -> Any:
    """Return what a tensor stands for outside all graphs that have captured it."""
    graph: Any = getattr(tensor, "graph", None)
    while isinstance(graph, tf.__internal__.FuncGraph):
        outer = next((outer for outer, inner in graph.captures if inner is tensor), None)
        if outer is None:
            break
        tensor, graph = outer, getattr(outer, "graph", None)
    return tensor
