"""The memory that training a model needs on one device, from the graph of its step: nothing is computed or changed."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ..compat.keras_private.functional import declared_inputs
from ..compat.keras_private.layers import layers_of
from ..compat.keras_private.variables import stored_dtype
from ..compat.tensorflow_graphs.graphs import bytes_kept_for_backward, scratch_graph
from ..compat.tensorflow_private.valueless_variables import variables_without_memory
from ..distribute.arguments import shown
from ..distribute.hardware.memory_plan import ModelMemory

_HALF = ("float16", "bfloat16")
_ROWS = 2, 4  # samples of two graphs, whose difference is the bytes of a sample


def model_memory(model: keras.Model, x: Any = None, y: Any = None) -> ModelMemory:
    """The bytes that training `model` needs on one device, for `unisono.distribute.memory_plans`.

    The forward and backward pass are traced, not run. Tensors kept for the backward pass are counted as in TensorFlow's
    graph: XLA may need less, and kernels need additional memory. A custom `train_step` is not analysed.

    Args:
        model: built, or a subclass with `x` given; compiled with the optimizer and the loss of training. Without an
            optimizer, two optimizer variables for each trained weight are counted, as for Adam.
        x: a batch of inputs: arrays, tensors, or `tf.TensorSpec`s, with any number of samples. None: the declared
            inputs of the model.
        y: targets; None: like the outputs, or for sparse losses like the outputs without their last axis.

    Returns:
        A `unisono.distribute.ModelMemory`.

    Raises:
        TypeError: `model` is not a Keras model.
        ValueError: `x` is missing and the model does not know its inputs.

    Examples:
        >>> needed = unisono.model_memory(model)  # five weights, trained with Adam
        >>> needed.weights, needed.trained
        (20, 20)
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"`model` must be a Keras model. Received: {shown(model)}")
    x = declared_inputs(model) if x is None else x
    if x is None:
        raise ValueError(
            f"`x` is missing, and the model {model.name!r} does not know its inputs: give a batch of them as `x`."
        )
    inputs = _specs("x", x)
    targets = None if y is None else _specs("y", y)
    with variables_without_memory():
        few, many = (_kept_bytes(model, inputs, targets, samples) for samples in _ROWS)
        optimizer_state = _state_bytes(model)
    per_sample = (many - few) / (_ROWS[1] - _ROWS[0])
    if many == few:  # the shapes determine the number of samples
        samples = next((each.shape[0] for each in tf.nest.flatten(inputs) if each.shape.rank), None) or 1
        per_sample = few / samples
    always = max(0.0, few - per_sample * _ROWS[0]) if many != few else 0.0
    return memory_of(model, optimizer_state=optimizer_state, activations=per_sample, always=always)


def memory_of(model: Any, **others: Any) -> ModelMemory:
    """The bytes of a model's weights; `others` are the arguments of `ModelMemory` that do not depend on them alone."""
    return ModelMemory(
        weights=sum(map(bytes_of, model.variables)),
        trained=sum(map(bytes_of, model.trainable_variables)),
        largest_layer=max(
            (sum(map(bytes_of, each)) for each in map(_own_weights, layers_of(model))), default=0
        ),
        vectors=sum(bytes_of(variable) for variable in model.variables if len(variable.shape) < 2),
        half_precision=any(layer.compute_dtype in _HALF for layer in layers_of(model)),
        **others,
    )


def _specs(name: str, values: Any) -> Any:
    def spec(value: Any) -> tf.TensorSpec:
        if isinstance(value, tf.TensorSpec):
            return value
        if isinstance(value, keras.KerasTensor):
            return tf.TensorSpec(value.shape, value.dtype)
        tensor: Any = value if tf.is_tensor(value) else keras.ops.convert_to_numpy(value)
        if not len(tensor.shape):
            raise TypeError("a scalar has no batch dimension")
        return tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype)

    try:
        specs = tf.nest.map_structure(spec, values)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"`{name}` must be arrays, tensors or `tf.TensorSpec`s of a batch. Received: {shown(values)} ({error})"
        ) from error
    if not tf.nest.flatten(specs):
        raise ValueError(f"`{name}` must have at least one array. Received: {shown(values)}")
    return specs


def _placeholder(spec: tf.TensorSpec, samples: int) -> tf.Tensor:
    sizes: Any = [samples if size is None else size for size in spec.shape]
    return tf.compat.v1.placeholder(spec.dtype, sizes)


def _kept_bytes(model: keras.Model, inputs: Any, targets: Any, samples: int) -> int:
    """The bytes of the inputs and of the tensors kept for the backward pass, with size `samples` for every open axis."""
    with scratch_graph() as graph:
        x = tf.nest.map_structure(lambda spec: _placeholder(spec, samples), inputs)
        with tf.GradientTape() as tape:
            outputs = model(x, training=True)
            loss = _loss(model, x, outputs, targets, samples)
        tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    given = sum(each.shape.num_elements() * each.dtype.size for each in tf.nest.flatten(x))
    return given + bytes_kept_for_backward(graph)


def _loss(model: keras.Model, x: Any, outputs: Any, targets: Any, samples: int) -> Any:
    if not model.compiled or not callable(getattr(model, "compute_loss", None)):
        return tf.add_n(
            [tf.reduce_sum(tf.square(tf.cast(each, tf.float32))) for each in tf.nest.flatten(outputs)]
        )
    if targets is not None:
        y = tf.nest.map_structure(lambda spec: _placeholder(spec, samples), targets)
        return model.compute_loss(x, y, outputs)
    try:
        return model.compute_loss(x, tf.nest.map_structure(tf.zeros_like, outputs), outputs)
    except ValueError:
        classes = tf.nest.map_structure(lambda each: tf.zeros(each.shape[:-1], tf.int32), outputs)
        return model.compute_loss(x, classes, outputs)


def _state_bytes(model: keras.Model) -> int:
    if not model.compiled or model.optimizer is None:
        return 2 * sum(map(bytes_of, model.trainable_variables))
    optimizer: Any = model.optimizer
    if not optimizer.built:  # a copy: `fit` builds the model's own
        optimizer = type(optimizer).from_config(optimizer.get_config())
        optimizer.build(model.trainable_variables)
    return sum(map(bytes_of, optimizer.variables))


def _own_weights(layer: Any) -> list[Any]:
    inside = {
        id(weight) for each in layers_of(layer) if each is not layer for weight in each.trainable_variables
    }
    return [weight for weight in layer.trainable_variables if id(weight) not in inside]


def bytes_of(variable: Any) -> int:
    """The bytes of a variable, in the dtype in which it is stored."""
    return (tf.TensorShape(variable.shape).num_elements() or 0) * tf.as_dtype(stored_dtype(variable)).size
