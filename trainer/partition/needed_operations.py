"""Which operations of a graph must be computed."""

import weakref
from typing import Any

import tensorflow as tf

from ...compat.tensorflow_graphs.made_operations import stands_for
from ...compat.tensorflow_graphs.one_device import subgraphs

APPLY = "call of an optimizer"
"""What an `IdentityN` stands for."""

_holding_calls: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
_needed: weakref.WeakKeyDictionary[Any, tuple[Any, set[str]]] = weakref.WeakKeyDictionary()
"""For each graph what it was when it was asked for, and the names."""


def find_needed_operations(graph: Any) -> set[str]:
    """Return the names of the operations that affect the results or side effects of a graph."""
    size = graph.version, len(graph.outputs)
    if graph in _needed and _needed[graph][0] == size:
        return _needed[graph][1]
    found: set[str] = set()
    _needed[graph] = size, found
    ahead = [tensor.op for tensor in graph.outputs]
    ahead += [op for op in graph.get_operations() if op.op_def.is_stateful or _calls_optimizer(op)]
    while ahead:
        op = ahead.pop()
        if op.name not in found:
            found.add(op.name)
            ahead += [tensor.op for tensor in op.inputs]
            ahead += op.control_inputs
    return found


def _calls_optimizer(op: tf.Operation) -> bool:
    """Return whether an operation stands for a call of an optimizer, or a function that it holds has one that does."""
    return stands_for(op, APPLY) is not None or any(_holds_call(graph) for _, graph in subgraphs(op))


def _holds_call(graph: Any) -> bool:
    if graph not in _holding_calls:
        _holding_calls[graph] = any(map(_calls_optimizer, graph.get_operations()))
    return _holding_calls[graph]
