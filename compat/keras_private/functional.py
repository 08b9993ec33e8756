"""The graph of a functional model: its nodes in order, and how one is called."""

import contextlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from ..upstream_places import Functional, input_spec, unpack_singleton
from . import private_method

_AS_KERAS = "_unisono_calls_as_keras"


def calls_as_keras(method: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a `__call__` that returns the same as Keras' own."""
    setattr(method, _AS_KERAS, True)
    return method


def graph_of(model: Any) -> Any | None:
    """Return the functional graph that `model(x)` runs; None if it has none or its `call` is not Keras' own."""
    if isinstance(model, keras.Sequential):
        plain = type(model).call is keras.Sequential.call
        return model._functional if plain and model.built else None
    if isinstance(model, Functional) and type(model).call is Functional.call:
        return model
    return None


@contextlib.contextmanager
def undo_failed_build(layers: Sequence[Any]) -> Iterator[None]:
    """Let sequential models among `layers` be built for another shape after an error in the block: drop its inputs."""
    before = [(each, each._layers) for each in layers if isinstance(each, keras.Sequential)]
    try:
        yield
    except Exception:
        for each, parts in before:
            each._layers = parts
        raise


def nodes_in_order(graph: Any) -> list[Any]:
    """Return the nodes of a functional graph except its inputs, each after its dependencies, in the order of layers."""
    position = {id(operation): i for i, operation in enumerate(graph._operations)}
    nodes: list[Any] = []
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        at_depth = [n for n in graph._nodes_by_depth[depth] if n.operation and not n.is_input]
        nodes += sorted(at_depth, key=lambda node: position[id(node.operation)])
    return nodes


flat_inputs = private_method("_standardize_inputs")
"""`flat_inputs(graph, inputs)`: those of one call as a flat list, converted, None for an absent optional one."""


def pair_inputs(model: Any, inputs: Any) -> list[tuple[Any, Any]]:
    """Pair declared inputs and given values as a functional model does; none where the structures differ."""
    graph = graph_of(model)
    declared = getattr(graph, "_inputs_struct", None)
    if declared is None:
        return []
    if isinstance(inputs, dict):
        if not isinstance(declared, dict):
            return [
                (tensor, inputs[tensor.name])
                for tensor in keras.tree.flatten(declared)
                if tensor.name in inputs
            ]
        inputs = {key: inputs[key] for key in declared if key in inputs}
    expected, given = keras.tree.flatten(declared), keras.tree.flatten(inputs)
    return list(zip(expected, given)) if len(expected) == len(given) else []


def find_known_outputs(model: Any, inputs: Any) -> Any:
    """Return a model's known outputs for symbolic `inputs` like those of its graph; None otherwise."""
    call = type(model).__call__
    own_call = call is not keras.Model.__call__ and not getattr(call, _AS_KERAS, False)
    if own_call or not all(layer.built for layer in model._flatten_layers()):
        return None
    pairs = pair_inputs(model, inputs)
    graph = graph_of(model)
    alike = [
        isinstance(given, keras.KerasTensor) and _are_alike(declared, given) for declared, given in pairs
    ]
    if graph is None or not all(alike) or len(alike) != len(graph.inputs):
        return None
    return pack_outputs(graph, graph.outputs)


def _are_alike(declared: Any, given: Any) -> bool:
    same_kind = (declared.sparse, declared.ragged) == (given.sparse, given.ragged) == (False, False)
    return same_kind and declared.shape == given.shape and (declared.dtype, given.dtype).count("string") != 1


def pack_outputs(graph: Any, outputs: Sequence[Any]) -> Any:
    """Return the structure that the model returns, from its flat outputs."""
    return unpack_singleton(keras.tree.pack_sequence_as(graph._outputs_struct, list(outputs)))


def run_node(node: Any, values: dict[int, Any], training: bool) -> list[Any]:
    """Call a node's operation on the values of its inputs; return the values of its outputs, flat."""
    args, kwargs = node.arguments.fill_in(values)
    if "training" in getattr(node.operation, "_call_context_args", ()):
        kwargs["training"] = training
    return keras.tree.flatten(node.operation(*args, **kwargs))


def first_error(error: BaseException) -> BaseException:
    """Return the error that Keras replaced by one of its type, to add the arguments of a call; else `error`."""
    while type(inner := error.__cause__ or error.__context__) is type(error):
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        of_keras = frame.f_globals.get("__name__", "").startswith("keras.src.")
        if not (of_keras if error.__cause__ else error.__suppress_context__):
            break
        error = inner  # pyright: ignore[reportAssignmentType]
    return error


def find_rejected_shapes(error: BaseException) -> list[list[int | None]]:
    """Return the shapes, without the batch, of inputs that a layer's `input_spec` rejected; none if the cause differs."""
    frames = [frame for frame, _ in traceback.walk_tb(first_error(error).__traceback__)]
    checks = [frame.f_locals for frame in frames if frame.f_globals is vars(input_spec)]
    found = keras.tree.flatten([given.get("inputs", given.get("x")) for given in checks])
    return [list(each.shape[1:]) for each in found if hasattr(each, "shape")]
