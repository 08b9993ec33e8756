"""Tracing a step as the program of one device, and copying its operations into the graphs of replicas."""

import contextlib
import copy
import itertools
import os
import pathlib
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from ..thread_context import tracing
from ..upstream_places import (
    OptionalXlaContext,
    control_flow_util_v2,
    copy_handle_data,
    function_def_to_graph,
    save_context,
)
from .gradients import count_as_gradient, is_of_a_gradient

# Attributes that name other operations of the traced graph, and that are of a traced backward pass.
_LEFT_OUT = "_class", "_gradient_op_type"


_graphs_of_definitions: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
_LIBRARIES = (
    "/keras/src/",
    "/tensorflow/python/",
    "/tensorboard/plugins/",  # `tf.summary.scalar` is there
    "<frozen",
    "/threading.py",
    "/contextlib.py",
    "/functools.py",
)
_OURS = str(pathlib.Path(__file__).parents[2])
_BETWEEN_SEEDS = 1_000_003
_numbers = itertools.count()


def trace_on_one_device(fn: Callable[..., Any], specs: Sequence[tf.TensorSpec], for_xla: bool = False) -> Any:
    """Trace `fn(*tensors)`, a list of tensors, under the default strategy; return a `FuncGraph`.

    Distributed variables are read from their first copy. The inputs of the graph begin with placeholders for `specs`, its
    outputs are the results. With `for_xla`, XLA will compile it, and loops know the size of their lists.
    """
    with tf.init_scope():  # its outer graph; inside the scope tapes would not record
        graph: Any = tf.__internal__.FuncGraph("step")
    with (
        graph.as_default(),
        as_on_one_device(),
        tracing.set_to(partitions=True),
        graph.control_dependencies(None),
        OptionalXlaContext(for_xla),
    ):
        inputs = [tf.compat.v1.placeholder(spec.dtype, spec.shape) for spec in specs]
        graph.inputs.extend(inputs)
        outputs = fn(*inputs)
        graph.outputs = [graph.capture(tensor) for tensor in outputs]
    return graph


def graph_of(fn: Callable[..., list[Any]], like: Sequence[tf.Tensor]) -> Any:
    """Return the `FuncGraph` of a function of tensors with these specs, which has no captures."""
    graph: Any = tf.__internal__.FuncGraph("function")
    with graph.as_default():
        graph.inputs = [tf.compat.v1.placeholder(tensor.dtype, tensor.shape) for tensor in like]
        graph.outputs = fn(*graph.inputs)
    return graph


@contextlib.contextmanager
def as_on_one_device() -> Iterator[None]:
    """Trace the current graph, inside, under the default strategy: reads of distributed variables are of the first copy."""
    graph: Any = tf.compat.v1.get_default_graph()
    around, graph._distribution_strategy_stack = graph._distribution_strategy_stack, []
    none = tf.saved_model.SaveOptions(
        experimental_variable_policy=tf.saved_model.experimental.VariablePolicy.NONE
    )
    try:
        with save_context.save_context(none):
            yield
    finally:
        graph._distribution_strategy_stack = around


def inner_graph(op: tf.Operation, attribute: str) -> Any:
    """Return the `FuncGraph` of the function that an attribute of an operation names; None where it is not known."""
    return _graph_of(op, op.get_attr(attribute).name)


def find_called_graph(op: tf.Operation) -> Any:
    """Return the graph of the function that an operation's type names, as a `Defun` calls others; None without one."""
    return None if op.graph._get_function(op.type) is None else _graph_of(op, op.type)


def _graph_of(op: tf.Operation, name: str) -> Any:
    found = _find_function(op.graph, name)
    if found is None or hasattr(found, "graph"):
        return getattr(found, "graph", None)
    if found not in _graphs_of_definitions:  # made by a `Defun`, like those of CTC
        with op.graph.as_default():
            _graphs_of_definitions[found] = function_def_to_graph(found.definition)
    return _graphs_of_definitions[found]


def _find_function(graph: Any, name: str) -> Any:
    """Return a function of a graph; one that a tape makes again has the functions of the outer graph."""
    found: Any = None
    while found is None and graph is not None:
        found, graph = graph._get_function(name), getattr(graph, "outer_graph", None)
    return found


def find_distributed_variable(captured: Any) -> Any:
    """Return the variable whose first copy a graph has captured; None for other captures."""
    container = getattr(captured, "_distributed_container", None)
    return container() if container is not None else None


def on_replica(captured: Any, replica: int) -> Any:
    """Return the capture of a variable's first copy, replaced by the copy of another replica of this worker."""
    variable = find_distributed_variable(captured)
    if variable is None:
        return captured
    is_copied = isinstance(variable, tf.distribute.DistributedValues)
    return (variable.values if is_copied else variable.shards)[replica].handle


def copy_into_graph(
    op: tf.Operation,
    inputs: Sequence[Any],
    functions: dict[str, str],
    controls: Sequence[Any] = (),
    seed: int = 0,
    changed: Mapping[str, Sequence[int]] | None = None,
) -> Any:
    """Copy an operation of any graph into the current graph, to run after `controls`.

    A branch or a loop may get scalars in addition to the inputs of `op`, and replacements of its `functions`, by name.
    A draw of random numbers gets another seed for each `seed`. `changed` attributes are lists of int.
    """
    graph: Any = tf.compat.v1.get_default_graph()
    attributes = {key: value for key, value in op.node_def.attr.items() if key not in _LEFT_OUT}
    for key, value in attributes.items():
        if value.HasField("func") or value.list.func:
            attributes[key] = value = copy.deepcopy(value)
            for each in [value.func] if value.HasField("func") else value.list.func:
                _take_function(graph, op.graph, each, functions)
    if seed and "seed2" in attributes and (attributes["seed"].i or attributes["seed2"].i):
        attributes["seed2"] = tf.compat.v1.AttrValue(i=attributes["seed2"].i + _BETWEEN_SEEDS * seed)
    for key, numbers in (changed or {}).items():
        attributes[key] = tf.compat.v1.AttrValue(list=tf.compat.v1.AttrValue.ListValue(i=numbers))
    outputs = [tensor.dtype for tensor in op.outputs]
    more = [tensor.dtype for tensor in inputs[len(op.inputs) :]]
    is_loop = "T" in attributes
    for name in (("T", "output_shapes") if is_loop else ("Tin",)) if more else ():
        _append(attributes, name, more)
    with graph.control_dependencies(list(controls)), graph._original_op(op):  # errors name the user's line
        made = graph._create_op_internal(
            op.type,
            list(inputs),
            [*outputs, *(more if is_loop else [])],
            name=op.name.rpartition("/")[2].lstrip("_") or op.type,
            attrs=attributes,
        )
    if is_of_a_gradient(op):
        count_as_gradient(made)
    return made


def _append(attributes: dict[str, Any], name: str, dtypes: Sequence[tf.DType]) -> None:
    """Add scalars to the inputs of a branch or a loop; a loop passes them on."""
    if name not in attributes:
        return
    value = attributes[name] = copy.deepcopy(attributes[name])
    if name != "output_shapes":
        value.list.type.extend(dtype.as_datatype_enum for dtype in dtypes)
    elif value.list.shape:
        for _ in dtypes:
            value.list.shape.add()


def _take_function(graph: Any, source: Any, named: Any, functions: dict[str, str]) -> None:
    if named.name in functions:
        named.name = functions[named.name]
    elif graph._get_function(named.name) is None:
        graph._add_function_recursive(_find_function(source, named.name))


class _Body(tf.__internal__.FuncGraph):
    """A body of a branch or a loop. The graph around all bodies holds their functions: a library in each grows squared."""

    def _get_function(self, name: str) -> Any:
        return self.outer_graph._get_function(name)

    def _add_function_recursive(self, function: Any, overwrite: bool = False) -> None:
        self.outer_graph._add_function_recursive(function, overwrite)


def new_function(
    name: str,
    like: Any,
    build: Callable[[list[Any]], list[Any]],
    shapes: Sequence[Any],
    arguments: Sequence[Any],
) -> str:
    """Make a function for a branch or a loop in the current graph; return its name, which begins with `name`.

    `build` makes the outputs from the inputs. `shapes` are those of the inputs of `like`, the `FuncGraph` that it replaces.
    `arguments` are those of its first call, which can have additional scalars.
    """
    graph: Any = _Body(f"{name}_{next(_numbers)}")
    with graph.as_default():
        inputs = []
        for tensor, shape, argument in zip(like.inputs, shapes, arguments):
            made = tf.compat.v1.placeholder(tensor.dtype, shape)
            if tensor.dtype == tf.resource:
                copy_handle_data(argument, made)
            inputs.append(made)
        inputs += [tf.compat.v1.placeholder(t.dtype, t.shape) for t in arguments[len(like.inputs) :]]
        graph.inputs = inputs
        outputs = build(inputs)
        # As in TensorFlow's own functions: what comes after the function does not begin before it has read its variables.
        graph.control_outputs = [op for op in graph.get_operations() if op.op_def.is_stateful]
        with tf.control_dependencies(graph.control_outputs):
            graph.outputs = [tf.identity(t) for t in outputs]
    return control_flow_util_v2.create_new_tf_function(graph)


def line_of_user(op: tf.Operation) -> tuple[str, str]:
    """Return the line of user code that made an operation: `file.py:41` and its text; empty where none is known."""
    for frame in reversed(op.traceback or ()):
        if not any(part in frame.filename for part in _LIBRARIES) and not frame.filename.startswith(_OURS):
            return f"{os.path.basename(frame.filename)}:{frame.lineno}", (frame.line or "").strip()
    return "", ""


def subgraphs(op: tf.Operation) -> Iterator[tuple[str, Any]]:
    """Yield the functions that an operation names: their names and graphs."""
    for key in sorted(op.node_def.attr):
        value = op.node_def.attr[key]
        for each in [value.func] if value.HasField("func") else value.list.func:
            graph = _graph_of(op, each.name)
            if graph is not None:
                yield each.name, graph
