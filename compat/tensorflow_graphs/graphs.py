"""Graphs, the functions that hold them, and their operations."""

import contextlib
import functools
import inspect
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import tensorflow as tf

from ..upstream_places import (
    ag_ctx,
    autograph_artifact,
    config,
    context,
    lift_to_graph,
    op_def_registry,
    ops,
    py_func_from_autograph,
    tf_convert,
)

Function = TypeVar("Function", bound=Callable[..., Any])
_MOST_LAYOUTS = 32  # of the arguments of one function
_CALLS = ("While", "If", "PartitionedCall")  # the called functions may have side effects


def graph_function(fn: Callable[..., Any], **kwargs: Any) -> Any:
    """Make a `tf.function` of an internal function: no AutoGraph, and no retracing warning for each new model."""
    function = tf.function(fn, autograph=False, **kwargs)
    function._omit_frequent_tracing_warning = True
    return function


def only_graph(function: Any) -> Callable[..., Any]:
    """Call the one graph of a `tf.function` with a signature, past TensorFlow's search (0.5 ms), where there is one."""
    graph: Any = getattr(function, "_concrete_variable_creation_fn", None)
    known = graph is not None and function.input_signature is not None and not function._created_variables
    if not known or not tf.executing_eagerly() or tf.config.functions_run_eagerly():
        return function
    return functools.partial(_run_graph, graph)


def graph_for(function: Any, args: tuple[Any, ...]) -> Callable[..., Any]:
    """Call the graph of a `tf.function` for a known layout of arguments; for others the function itself."""
    tensors = [leaf for leaf in tf.nest.flatten(args) if leaf is not None]
    plain = all(isinstance(t, tf.Tensor) and t.dtype not in (tf.resource, tf.variant) for t in tensors)
    compiles = hasattr(function, "get_concrete_function") and not tf.config.functions_run_eagerly()
    if not (plain and compiles and tf.executing_eagerly()):
        return function
    key = str(tf.nest.map_structure(lambda leaf: leaf is None, args)), *((t.dtype, t.shape) for t in tensors)
    known: dict[Any, Any] = vars(function).setdefault("_graphs_of_layouts", {})
    if key not in known:
        if len(known) >= _MOST_LAYOUTS:
            known.clear()
        known[key] = None
        return function
    if known[key] is None:
        known[key] = function.get_concrete_function(*args)
    return functools.partial(_run_graph, known[key])


def _run_graph(graph: Any, *args: Any) -> Any:
    given = itertools.zip_longest(graph.function_type.parameters, args)  # defaults are not tensors
    inputs = graph.function_type.unpack_inputs(inspect.BoundArguments(graph.function_type, dict(given)))
    return graph._call_flat(inputs, graph.captured_inputs)


def inline_function(function: Any) -> Callable[..., Any] | None:
    """Return the body of a user's `tf.function`, for the graph that calls it; None for an internal function."""
    eager = tf.executing_eagerly()
    module = str(getattr(function.python_function, "__module__", ""))
    internal = eager and module.startswith("tensorflow.")  # `tf.vectorized_map`, which is not eager code
    if function._omit_frequent_tracing_warning or internal:
        return None
    if not function._autograph or eager:
        return function.python_function
    return _reconvert(py_func_from_autograph(function.python_function))


def retrace_compiled(function: Any) -> Callable[..., Any] | None:
    """Trace a `tf.function` with compile options anew, as an earlier trace may read old values; None for any other."""
    if not (function._jit_compile or function._attributes):
        return None
    anew = function._clone(None)
    anew._omit_frequent_tracing_warning = True
    return _reconvert(anew)


def _reconvert(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fn` with its Python code converted, as Keras switches conversion off around steps."""

    def computed(*args: Any, **kwargs: Any) -> Any:
        with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.UNSPECIFIED), keep_caching_device():
            return fn(*args, **kwargs)

    return computed


def leave_as_written(fn: Function) -> Function:
    """Mark a function of ours, or a class for the calls of its objects, that AutoGraph must not convert."""
    autograph_artifact(fn)
    return fn


def convert_as_in(fn: Callable[..., Any], status: Any) -> Callable[..., Any]:
    """Return `fn` with its `if` and `while` on tensors converted as where `status` was read (`control_status_ctx`)."""
    return tf_convert(fn, status, convert_by_default=False)


SHAPES = ("Shape", "ShapeN", "Size", "Rank")


def first_graph(function: Any) -> Any:
    """Return the graph of the first trace of a `tf.function`; None before it, and for anything else."""
    if getattr(function, "_variable_creation_config", None) is None:
        return None
    return function._concrete_variable_creation_fn.graph


@contextlib.contextmanager
def scratch_graph() -> Iterator[Any]:
    """Enter a temporary graph, to read structure from code that creates operations."""
    with tf.__internal__.FuncGraph("scratch").as_default() as graph, keep_caching_device():
        yield graph


@contextlib.contextmanager
def keep_caching_device() -> Iterator[None]:
    """Restore what `tf.map_fn` sets in all graphs while it runs, if an error leaves it: a strategy's scope rejects that."""
    scope = tf.compat.v1.get_variable_scope()
    before = scope.caching_device
    try:
        yield
    finally:
        if scope.caching_device is not before:
            with tf.Graph().as_default():
                scope.set_caching_device(before)


def compute_initial_values() -> contextlib.AbstractContextManager[Any]:
    """Let the block create `tf.Variable`s in a graph with initial values that it computes there, as a `tf.function` does."""

    def create(next_creator: Callable[..., Any], **options: Any) -> Any:
        value = options["initial_value"]
        if tf.is_tensor(value) and hasattr(value, "graph"):
            lifted = graph_function(lambda: lift_to_graph([value], tf.compat.v1.get_default_graph())[value])
            with tf.init_scope():
                options["initial_value"] = lifted()
        return next_creator(**options)

    return tf.variable_creator_scope(create)


def return_more(graph: Any, compute: Callable[[], list[tf.Tensor]]) -> None:
    """Let a traced branch also return what `compute` returns in its graph, in the list that is the last of its results."""
    with graph.as_default(), tf.control_dependencies(graph.control_outputs):
        more = [tf.identity(tensor) for tensor in compute()]
    graph.structured_outputs[-1].extend(more)
    graph.outputs.extend(more)


def enter_this_graph() -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """Make blocks whose operations are made where this was called: in its graph, or eagerly. Tapes go on recording."""
    return context.eager_mode if tf.executing_eagerly() else tf.compat.v1.get_default_graph().as_default


def is_inside(graph: Any, outer: Any) -> bool:
    """Return whether one graph is nested in another, at any depth: as a function, a branch or a loop."""
    while isinstance(graph, tf.__internal__.FuncGraph):
        graph = graph.outer_graph
        if graph is outer:
            return True
    return False


@contextlib.contextmanager
def effects() -> Iterator[list[tf.Operation]]:
    """Yield a list that gets the graph operations with side effects of the block, for `tf.control_dependencies`."""
    made: list[tf.Operation] = []
    if tf.executing_eagerly():
        yield made
        return
    graph = tf.compat.v1.get_default_graph()
    before = len(graph.get_operations())
    yield made
    made.extend(op for op in graph.get_operations()[before:] if op.op_def.is_stateful or op.type in _CALLS)


@functools.cache
def draws(kind: str) -> bool:
    """Return whether operations of a type draw random numbers from internal state."""
    found = op_def_registry.get(kind)
    if found is None or kind in ("RandomDataset", "RandomDatasetV2"):
        return found is not None
    return bool(found.is_stateful) and {"seed", "seed2"} <= {each.name for each in found.attr}


def nodes_of(definition: Any) -> list[Any]:
    """Return the nodes of a GraphDef and of its functions."""
    return [*definition.node, *(node for each in definition.library.function for node in each.node_def)]


def find_drawing_operations(graph: Any) -> list[str]:
    """Return the names of a graph's operations, its functions included, that draw from internal state."""
    return sorted({node.name for node in nodes_of(graph.as_graph_def(add_shapes=False)) if draws(node.op)})


def operations_are_deterministic() -> bool:
    """Return whether `tf.config.experimental.enable_op_determinism()` was called."""
    return bool(config.is_op_determinism_enabled())


def gradient_of_graph(decorator: tf.RegisterGradient, gradient: Callable[..., Any]) -> Callable[..., Any]:
    """Return the gradient to register, which the graph holds: TensorFlow would keep it, and the graph, for good."""
    graph = tf.compat.v1.get_default_graph()
    name: str = decorator._op_type
    if not name.startswith("CustomGradient-") or not isinstance(graph, tf.__internal__.FuncGraph):
        return gradient
    while isinstance(graph, tf.__internal__.FuncGraph):
        graph._unisono_gradients = [*getattr(graph, "_unisono_gradients", ()), gradient]
        graph = graph.outer_graph
    held: Any = weakref.ref(gradient, lambda _: ops.gradient_registry._registry.pop(name, None))
    return lambda *arguments: held()(*arguments)
