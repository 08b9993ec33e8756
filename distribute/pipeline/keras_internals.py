"""Everything private of Keras that the pipeline touches.

`tests/unit/test_pipeline_graph.py` fails when one of these changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend
from keras.src.backend.common import global_state
from keras.src.models.functional import Functional, operation_fn, unpack_singleton
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR

get_keras_mask = backend.get_keras_mask
set_keras_mask = backend.set_keras_mask


def graph_of(model: Any) -> Any | None:
    """The functional graph that `model(x)` runs; None if it has none or its `call` is not Keras' own."""
    if isinstance(model, keras.Sequential):
        plain = type(model).call is keras.Sequential.call
        return model._functional if plain and model.built else None
    if isinstance(model, Functional) and type(model).call is Functional.call:
        return model
    return None


def nodes_in_order(graph: Any) -> list[Any]:
    """The nodes of a functional graph but its inputs, each after what it needs, in the order of layers."""
    position = {id(operation): i for i, operation in enumerate(graph._operations)}
    nodes: list[Any] = []
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        at_depth = [n for n in graph._nodes_by_depth[depth] if n.operation and not n.is_input]
        nodes += sorted(at_depth, key=lambda node: position[id(node.operation)])
    return nodes


def flat_inputs(graph: Any, inputs: Any) -> list[Any]:
    """The inputs of one call as a flat list: converted, ranks adjusted, None for an absent optional one."""
    return graph._standardize_inputs(inputs)


def pack_outputs(graph: Any, outputs: Sequence[Any]) -> Any:
    """The structure that the model returns, from its flat outputs."""
    return unpack_singleton(keras.tree.pack_sequence_as(graph._outputs_struct, list(outputs)))


def run_node(node: Any, values: dict[int, Any], training: bool) -> list[Any]:
    """Calls a node's operation on the values of its inputs; returns the values of its outputs, flat."""
    args, kwargs = node.arguments.fill_in(values)
    outputs = operation_fn(node.operation, training=training)(*args, **kwargs)
    return keras.tree.flatten(outputs)


def random_states(operation: Any) -> list[Any]:
    """The variables of an operation's seed generators, those of nested layers included."""
    weights = {id(variable) for variable in getattr(operation, "weights", [])}
    return [v for v in getattr(operation, "variables", []) if id(v) not in weights]


def global_random_state() -> Any | None:
    """The state of the generator of random operations without a seed, if there is one already."""
    generator = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    return None if generator is None else generator.state


def flat_layers(layer: Any) -> list[Any]:
    """A layer and all layers inside of it; nothing for a plain operation."""
    return list(layer._flatten_layers()) if isinstance(layer, keras.layers.Layer) else []


def own_value(variable: Any) -> tf.Variable:
    """The TensorFlow variable inside a Keras variable, whatever scope notes another value."""
    return variable._value


def move_variable(variable: Any, device: str) -> None:
    """Makes the TensorFlow variable inside a Keras variable again on `device`, with its value and its id.

    Optimizers that were built before know their variables by that id.
    """
    old = variable._value
    if isinstance(old, tf.Variable) and old.device == device:
        return
    with tf.init_scope(), tf.device(device):
        variable._value = tf.Variable(
            old,
            dtype=old.dtype,
            trainable=old.trainable,
            name=variable.name,
            aggregation=old.aggregation,
            synchronization=old.synchronization,
        )
    variable._value._unique_id = old._unique_id
