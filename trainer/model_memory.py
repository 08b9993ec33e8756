"""Estimate the memory that training a model needs on one device, from a graph of its step that is not run."""

import contextlib
import math
from typing import Any

import keras
import tensorflow as tf

from ..compat.keras_private.functional import find_declared_inputs
from ..compat.keras_private.layers import layers_of
from ..compat.keras_private.variables import find_stored_dtype, raw_value
from ..compat.tensorflow_graphs.graphs import bytes_kept_for_backward, scratch_graph
from ..compat.tensorflow_private.valueless_variables import variables_without_memory
from ..distribute.arguments import show
from ..distribute.hardware.memory_plan import ModelMemory


def model_memory(model: keras.Model, x: Any = None, y: Any = None) -> ModelMemory:
    """Estimate the `ModelMemory` that training `model` needs on one device, for `unisono.distribute.memory_plans`.

    The forward and backward pass are traced, not run. Tensors kept for the backward pass are counted as in TensorFlow's
    graph: XLA may need less, and kernels need more. `model` is compiled; without an optimizer, two variables for a trained
    weight are counted. `x` is a batch of arrays, tensors or `tf.TensorSpec`s, which a subclass needs. `y` are targets: by
    default like the outputs, or for sparse losses like the outputs without their last axis.

    Examples:
        >>> needed = unisono.model_memory(model)  # five weights, trained with Adam
        >>> needed.weights, needed.trained
        (20, 20)
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"`model` must be a Keras model. Received: {show(model)}")
    x = find_declared_inputs(model) if x is None else x
    if x is None:
        raise ValueError(f"`x` is missing, and {model.name!r} does not know its inputs: pass a batch as `x`.")
    for part in tf.nest.flatten(x if y is None else [x, y]):
        if not hasattr(part, "shape") or not hasattr(part, "dtype"):
            raise TypeError(f"`x` and `y` must be arrays, tensors or tf.TensorSpecs. Received: {show(part)}")
        shape = tuple(part.shape)
        if None in shape[1:]:
            raise ValueError(
                f"The memory of {model.name!r} depends on a length that the shape {shape} leaves open: pass a batch as "
                "`x`, such as `tf.TensorSpec((None, 512), tf.int32)`."
            )
    with variables_without_memory():
        few, many = (_count_kept_bytes(model, x, y, samples) for samples in (2, 4))
        optimizer: Any = model.optimizer if model.compiled else None
        if optimizer and not optimizer.built:  # a copy: `fit` builds the model's own
            optimizer = type(optimizer).from_config(optimizer.get_config())
            optimizer.build(model.trainable_variables)
        state = optimizer.variables if optimizer else [*model.trainable_variables] * 2
        return memory_of(model, bytes_of(*state), (many - few) / 2)


def memory_of(model: Any, optimizer_state: int, activations: float) -> ModelMemory:
    """Return the bytes of a model's weights, with those of its optimizer and of a sample's activations."""
    layers = layers_of(model)
    largest = max(bytes_of(*each.trainable_variables) for each in layers if not layers_of(each)[1:])
    half = any(layer.compute_dtype in ("float16", "bfloat16") for layer in layers)
    weights, trained = bytes_of(*model.variables), bytes_of(*model.trainable_variables)
    return ModelMemory(weights, trained, optimizer_state, activations, largest, half)


def bytes_of(*variables: Any) -> int:
    """Return the bytes of variables, in the dtype in which they are stored."""
    return sum(math.prod(each.shape) * tf.as_dtype(find_stored_dtype(each)).size for each in variables)


def bytes_of_parts(*variables: Any) -> int:
    """Return the bytes that a replica has of variables, which can be divided."""
    return sum(bytes_of(*getattr(raw_value(each), "shards", [each])[:1]) for each in variables)


def _count_kept_bytes(model: keras.Model, x: Any, y: Any, samples: int) -> int:
    """Count the bytes of inputs and of tensors kept for the backward pass."""

    def placeholder(value: Any) -> Any:
        return tf.compat.v1.placeholder(value.dtype, [samples, *value.shape[1:]])

    with scratch_graph() as graph:
        inputs = tf.nest.map_structure(placeholder, x)
        with tf.GradientTape() as tape:
            outputs: Any = model(inputs, training=True)
            loss: Any = outputs
            if model.compiled:
                targets = None if y is None else tf.nest.map_structure(placeholder, y)
                loss = _loss(model, inputs, targets, outputs)
        tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    given = sum(each.shape.num_elements() * each.dtype.size for each in tf.nest.flatten(inputs))
    return given + bytes_kept_for_backward(graph)


def _loss(model: keras.Model, x: Any, y: Any, outputs: Any) -> Any:
    with contextlib.suppress(ValueError):  # a sparse loss
        return model.compute_loss(
            x, tf.nest.map_structure(tf.zeros_like, outputs) if y is None else y, outputs
        )
    classes = tf.nest.map_structure(lambda each: tf.zeros(each.shape[:-1], tf.int32), outputs)
    return model.compute_loss(x, classes if y is None else y, outputs)
