"""Functions whose call counts as one operation, of a kind of its own."""

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import tensorflow as tf

from ..upstream_places import control_flow_util_v2
from .one_device import inner_graph

CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_FUNCTIONS = "functions that count as one operation"
_numbers = itertools.count()


def call_as_one(
    kind: str,
    key: Hashable,
    fn: Callable[..., Sequence[Any]],
    inputs: Sequence[Any],
    specs: Sequence[tf.TensorSpec],
) -> list[Any]:
    """Return `fn(*inputs)`; in a graph, from one operation of this `kind`, whose function is traced for `specs`.

    Calls in one graph with an equal kind, `key` and specs share the function. It has no captures and no effects.
    """
    if tf.executing_eagerly():
        return list(fn(*inputs))
    graph: Any = tf.compat.v1.get_default_graph()
    functions = graph.get_collection_ref(_FUNCTIONS)
    known = {each: found for each, *found in functions}
    key = kind, key, *specs
    if key not in known:
        functions.append((key, *_make_function(kind, fn, specs)))
        known[key] = functions[-1][1:]
    name, dtypes = known[key]
    return tf.raw_ops.PartitionedCall(args=inputs, Tout=dtypes, f=name)


def _make_function(
    kind: str, fn: Callable[..., Sequence[Any]], specs: Sequence[tf.TensorSpec]
) -> tuple[str, list[tf.DType]]:
    """Make a function in the current graph; return its name, and the types of its results."""
    graph: Any = tf.__internal__.FuncGraph(f"{kind}_{next(_numbers)}")
    graph.kind = kind
    with graph.as_default(), tf.device(None):  # it runs where its caller does
        graph.inputs = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs]
        graph.outputs = [tf.identity(tensor) for tensor in fn(*graph.inputs)]
    return control_flow_util_v2.create_new_tf_function(graph), [t.dtype for t in graph.outputs]


def kind_of(op: tf.Operation) -> str:
    """Return the type of an operation, or the kind of a call that counts as one."""
    if op.type not in CALLS:
        return op.type
    return getattr(inner_graph(op, "f"), "kind", op.type)
