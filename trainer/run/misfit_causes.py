"""Whether an argument is what an error is about: its shape or structure disagrees with the model or the loss."""

from __future__ import annotations

import traceback
from typing import Any

import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.functional import paired_inputs

# How Keras says that what a layer is given is not what it was built for, or takes.
_OF_INPUTS = (
    "incompatible with the layer",
    "is not compatible with",
    "missing 1 required positional argument",
)


def line_of_users(error: Exception) -> str:
    """Where in the user's own code an error was raised, as " (file, line 3)"; "" where it was in none."""
    stack = traceback.extract_tb(error.__traceback__)
    own = [
        f for f in stack if not any(f"/{name}/" in f.filename for name in ("keras", "tensorflow", "unisono"))
    ]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def is_cause(model: TrainedModel, part: str, parts: dict[str, Any], outputs: list[Any], reason: str) -> bool:
    """Whether an argument itself disagrees with the model or the loss, not only something that is computed of it."""
    if part == "x":
        return _x_disagrees(model, parts["x"], reason)
    if part == "y":
        return _texts(parts["y"]) or "`loss_weights`" in reason or _y_disagrees(model, parts["y"], outputs[0])
    return part == "metrics" or _y_disagrees(model, parts["y"], outputs[0]) or _has_other_rank(parts[part])


def _has_other_rank(weights: Any) -> bool:
    return tf.nest.is_nested(weights) or weights.shape.rank != 1


def _x_disagrees(model: TrainedModel, x: Any, reason: str) -> bool:
    inputs = getattr(model, "inputs", None)
    if not inputs:
        return _texts(x) or any(words in reason for words in _OF_INPUTS)
    pairs = paired_inputs(model, x)
    if len(pairs) != len(inputs):
        return True
    return any(
        "is not optional" in reason if given is None else not _fits(tensor, given) for tensor, given in pairs
    )


def _fits(tensor: Any, given: Any) -> bool:
    """Whether what is given for a declared input has its shape, but for a last axis of one, and its kind."""
    expected, shape = tf.TensorShape(tensor.shape), tf.TensorShape(given.shape)
    if (tensor.dtype == "string") != (given.dtype == tf.string):
        return False
    if not isinstance(given, tf.TensorSpec) or None in (expected.rank, shape.rank):
        return True
    return shape.is_compatible_with(expected) or _but_one(shape, expected) or _but_one(expected, shape)


def _y_disagrees(model: TrainedModel, y: Any, outputs: Any) -> bool:
    """Whether targets have another structure than the outputs, or another shape than a loss of Keras compares them in."""
    losses = tf.nest.flatten(model.loss)
    targets = tf.nest.flatten(y)
    shapes = tf.nest.flatten(outputs)
    if tf.nest.is_nested(y) and isinstance(outputs, tf.TensorShape):
        return True
    if isinstance(y, dict) and isinstance(outputs, dict) and set(y) != set(outputs):
        return True
    if len(targets) != len(shapes) or isinstance(model.loss, dict) or len(losses) not in (1, len(shapes)):
        return True
    losses *= len(shapes) // len(losses)
    return any(_differ(loss, *pair) for loss, *pair in zip(losses, targets, shapes))


def _differ(loss: Any, target: Any, output: tf.TensorShape) -> bool:
    owner = loss if isinstance(loss, str) or (callable(loss) and hasattr(loss, "__name__")) else type(loss)
    if not isinstance(loss, str) and not str(owner.__module__).startswith("keras."):
        return False  # code of the user's own compares what it likes
    name = str(loss if isinstance(loss, str) else getattr(owner, "__name__", "")).lower().replace("_", "")
    shape = getattr(target, "shape", None)
    if name == "ctc" or target is None or shape is None or None in (shape.rank, output.rank):
        return target is None
    expected = output[:-1] if name == "sparsecategoricalcrossentropy" else output
    return not (shape.is_compatible_with(expected) or _but_one(shape, expected) or _but_one(expected, shape))


def _but_one(longer: tf.TensorShape, shorter: tf.TensorShape) -> bool:
    return (
        len(longer) == len(shorter) + 1
        and longer[-1] in (1, None)
        and longer[:-1].is_compatible_with(shorter)
    )


def _texts(spec: Any) -> bool:
    return any(getattr(part, "dtype", None) == tf.string for part in tf.nest.flatten(spec))
