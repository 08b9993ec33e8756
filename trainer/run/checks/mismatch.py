"""Which argument does not fit the model: found by calling the model, its loss and its metrics on placeholders."""

import re
import traceback
from typing import Any

import keras
import tensorflow as tf

from ....compat.keras_private.functional import find_rejected_shapes, first_error, pair_inputs
from ....compat.keras_private.training import (
    compute_loss,
    find_compiled_metrics,
    find_loss_weights,
    overrides_compute_loss,
)
from ....compat.upstream_places import compute_output_spec
from ....distribute.arguments import show, takes_arguments
from ....state.trained_model import TrainedModel
from ...compile_checks import output_names
from ...inputs.batch import is_standard, unpack
from ...inputs.value_checks import holds_text
from ...step.first_call import placeholder
from .batch_checks import is_optional


def mismatch(
    model: TrainedModel, spec: Any, batch_size: int | None, step: str, varies: bool = False
) -> str | None:
    """Return the sentence with the argument that does not fit the model; None if all fit, or if it is unknown.

    Nothing is called again without an error, except for validation data whose layout differs from the training data's, which
    would otherwise fail after the first epoch. The sentence is only given where the shapes disagree, or where a batch
    `varies` from others that the model took.
    """
    if model._overrides_step(step) or not is_standard(spec):
        return None
    x, y, sample_weight = unpack(spec)
    own_loss = overrides_compute_loss(model)
    if step != "predict_step" and y is None and model.loss is not None and not own_loss:
        return (
            f"`y` is None, but the model was compiled with loss={show(model.loss)}: pass the targets as `y`, or as the "
            "second part of each batch of the dataset."
        )
    reached = ["x"]
    outputs: list[Any] = []

    def call_one_after_the_other() -> Any:
        tensors = [_placeholders(part, batch_size) for part in (x, y, sample_weight)]
        y_pred = model(tensors[0], training=False)
        shapes = keras.tree.map_structure(lambda t: tf.TensorShape([None]).concatenate(t.shape[1:]), y_pred)
        outputs.append(shapes)
        _ = model.losses  # an error in a regularizer is none of the loss
        if step == "predict_step" or y is None:
            return y_pred
        given = {"x": tensors[0], "y": tensors[1], "y_pred": y_pred, "training": False}
        if not own_loss:
            reached.append("y")
            compute_loss(model, **given, sample_weight=None)
        if not own_loss and sample_weight is not None:
            reached.append("sample_weight")
            compute_loss(model, **given, sample_weight=tensors[2])
        reached.append("metrics")
        model.compute_metrics(tensors[0], tensors[1], y_pred, tensors[2])
        reached.append("variables")  # which get their values at the end
        return y_pred

    try:
        with model._strategy_scope():
            compute_output_spec(call_one_after_the_other)
    except Exception as error:  # any type: the call that originally failed raised one of `_ERRORS`
        reason = _reason(error)
        if reached[-1] == "x":
            return _about_x(model, x, error, reason, varies)
        if reached[-1] == "variables":
            return None
        made = f"targets of {_shapes(y)} and outputs of {_shapes(outputs[0])}"
        if reached[-1] == "y":
            return _about_y(model, y, outputs[0], made, error, reason)
        if reached[-1] == "metrics" and (sentence := _about_missing(model, y, made)):
            return sentence
        if reached[-1] == "metrics":
            line = _line_of_users(error)
            given = [f"`{name}` {show(value)}" for name, value in find_compiled_metrics(model).items()]
            return f"Invalid {' or '.join(given)} for {made}: {reason}{line}."
        flat = not tf.nest.is_nested(sample_weight) and sample_weight.shape.rank == 1
        fix = "one weight for each sample" + (", for each loss, or of shape (samples, 1)" if flat else "")
        if isinstance(sample_weight, dict) and isinstance(outputs[0], list | tuple):
            fix = "a list, as the outputs are one"
        return f"`sample_weight` of {_shapes(sample_weight)} does not fit the losses of {made}: pass {fix}."
    return None


def find_need_of_size(model: TrainedModel, spec: Any, samples: int, step: str) -> str | None:
    """Return the sentence for code that fails unless it knows the number of samples while it is traced; None for other code.

    Called after an error for batches of several sizes, where no argument is wrong.
    """
    if model._overrides_step(step) or not is_standard(spec):
        return None
    x = unpack(spec)[0]
    try:
        with model._strategy_scope():
            compute_output_spec(lambda: model(_placeholders(x, samples), training=False))
            try:
                compute_output_spec(lambda: model(_placeholders(x, None), training=False))
            except Exception as error:
                reason, line = _reason(error), _line_of_users(error)
            else:
                return None
    except Exception:
        return None
    return (
        f"The code of {type(model).__name__} needs the number of samples in a batch while it is traced, but batches may "
        f"have several: {reason}{line}. Use `tf.shape(x)[0]` instead of `x.shape[0]`, or batches of one size "
        "(`drop_remainder=True`)."
    )


def _about_x(model: TrainedModel, x: Any, error: Exception, reason: str, varies: bool) -> str | None:
    inputs = getattr(model, "inputs", None)
    pairs = pair_inputs(model, x) if inputs else []
    if not inputs:
        rejected = find_rejected_shapes(error)
        leaves = tf.nest.flatten(x)
        if None in leaves:
            return f"`x` of {_shapes(x)} has None, which the model cannot take: {reason}. Pass an array for each input."
        shapes = [list(part.shape[1:]) for part in leaves]
        disagrees = (
            holds_text(x) or not takes_arguments(model.call, 1) or any(each in shapes for each in rejected)
        )
    else:
        disagrees = len(pairs) != len(inputs) or any(
            not is_optional(model, tensor) if given is None else not _fits(tensor, given)
            for tensor, given in pairs
        )
    if not (disagrees or varies):
        return None
    takes = ", ".join(f"{t.name} {tuple(t.shape)}" for t in inputs or ())
    return f"`x` of {_shapes(x)} does not fit the model{f', which takes {takes}' if takes else ''}: {reason}."


def _about_y(model: TrainedModel, y: Any, outputs: Any, made: str, error: Exception, reason: str) -> str:
    loss = f"loss={show(model.loss)}"
    weights = find_loss_weights(model)
    if tf.nest.is_nested(weights) and len(tf.nest.flatten(weights)) != len(tf.nest.flatten(model.loss)):
        count = f"{len(tf.nest.flatten(model.loss))} losses and {len(tf.nest.flatten(weights))} weights"
        return f"Invalid `loss_weights` for {loss}: {count}."
    if not _blames_targets(model, y, outputs):
        return f"{loss} failed for {made}: {reason}{_line_of_users(error)}."
    names = output_names(model)
    if isinstance(model.loss, dict) and names and set(names) != set(model.loss):
        return (
            f"`loss` names the outputs {', '.join(map(repr, model.loss))}, but the model has the outputs "
            f"{', '.join(map(repr, names))}: pass a loss, or None, for each ({reason})."
        )
    if sentence := _about_missing(model, y, made):
        return sentence
    return f"`y` does not fit {loss}: {_fix_of_y(model, y, outputs)}. Received: {made} ({reason})."


def _about_missing(model: TrainedModel, y: Any, made: str) -> str | None:
    """Return the sentence for an output with a loss or metrics that has no target, or is missing in a dict of them."""
    names = output_names(model) or []
    targets = y if isinstance(y, dict) else dict(zip(names, y)) if isinstance(y, list | tuple) else None
    if targets is None or len(names) < 2:
        return None

    def concerns(argument: Any, number: int) -> bool:
        several = isinstance(argument, list | tuple) and len(argument) == len(names)
        one = argument.get(names[number]) if isinstance(argument, dict) else argument
        return bool(argument[number] if several else one)

    needs = [model.loss, *find_compiled_metrics(model).values()]
    for number, name in enumerate(names):
        used = any(concerns(argument, number) for argument in needs)
        if name not in targets or (targets[name] is None and used):
            fix = "pass one, or leave out its loss and metrics" if used else f"add {name!r}: None"
            return f"`y` has no target for the output {name!r}: {fix}. Received: {made}."
    return None


def _fix_of_y(model: TrainedModel, y: Any, outputs: Any) -> str:
    """Return the fix, for each kind of mistake."""
    usual = "pass targets in the structure and the shape of the outputs"
    if (
        tf.nest.is_nested(y)
        or not isinstance(outputs, tf.TensorShape)
        or None in (y.shape.rank, outputs.rank)
    ):
        return usual
    name = _name_of(model.loss)
    if name == "sparsecategoricalcrossentropy" and y.shape.rank >= len(outputs):
        return "it takes class numbers, so for one-hot targets use categorical_crossentropy"
    if name == "categoricalcrossentropy" and tuple(y.shape)[1:] in ((), (1,)):
        return "it takes one-hot targets, so for class numbers use sparse_categorical_crossentropy"
    return usual


def _name_of(loss: Any) -> str:
    """Return the name of a loss of Keras without `_`, in small letters, from any form of the argument."""
    if not isinstance(loss, str):
        loss = getattr(loss, "__name__", None) or type(loss).__name__
    return loss.lower().replace("_", "")


def _blames_targets(model: TrainedModel, y: Any, outputs: Any) -> bool:
    """Return whether targets differ from outputs in structure or shape, and Keras' losses, which compare them, failed."""
    losses = [loss for loss in tf.nest.flatten(model.loss) if loss is not None]
    custom = [loss for loss in losses if not isinstance(loss, str)]
    owners = [loss if hasattr(loss, "__name__") else type(loss) for loss in custom]
    plain = all(owner.__module__.startswith("keras.") and _name_of(owner) != "ctc" for owner in owners)
    of_classes = any(_name_of(loss).startswith("sparse") for loss in losses)
    return holds_text(y) or (plain and (of_classes or _shapes(y) != _shapes(outputs)))


def _fits(tensor: Any, given: Any) -> bool:
    """Return whether the value of a declared input has its shape, except for a last axis of one, and its kind."""
    expected, shape = tf.TensorShape(tensor.shape), tf.TensorShape(given.shape)
    if (tensor.dtype == "string") != (given.dtype == tf.string):
        return False
    if not isinstance(given, tf.TensorSpec) or None in (expected.rank, shape.rank):
        return True
    return _broadcasts(shape, expected)


def _broadcasts(a: tf.TensorShape, b: tf.TensorShape) -> bool:
    """Return whether two shapes are equal, except for a last axis of 1."""
    longer, shorter = (a, b) if len(a) > len(b) else (b, a)
    if len(longer) == len(shorter) + 1 and longer[-1] in (1, None):
        longer = longer[:-1]
    return longer.is_compatible_with(shorter)


def _placeholders(spec: Any, batch_size: int | None) -> Any:
    dense = all(isinstance(part, tf.TensorSpec | None) for part in tf.nest.flatten(spec))
    return tf.nest.map_structure(lambda part: placeholder(part, batch_size if dense else None), spec)


def _shapes(structure: Any) -> str:
    """Return the shapes of a nest as short text, with the dtype for strings."""

    def text(part: Any) -> str:
        if part is None:
            return "None"
        shape = tf.TensorShape(getattr(part, "shape", part))
        known = "unknown" if shape.rank is None else str(tuple(shape))
        return f"strings {known}" if getattr(part, "dtype", None) == tf.string else known

    if isinstance(structure, tf.TensorShape | tf.TypeSpec) or not tf.nest.is_nested(structure):
        return f"shape {text(structure)}"
    return f"shapes {keras.tree.map_structure(text, structure)}".replace("'", "")


def _reason(error: Exception) -> str:
    """Return the error in one line, as it was before Keras added the arguments of the call."""
    text = re.sub(r" for '{{node .*?'", "", " ".join(str(first_error(error)).split())).rstrip(".")
    return text if len(text) <= 200 else f"{text[:197]}..."


def _line_of_users(error: Exception) -> str:
    """Return the line of user code that raised an error, as " (file, line 3)"; "" where there is none."""
    stack = traceback.extract_tb(first_error(error).__traceback__)
    libraries = ("/keras/", "/tensorflow/", "/unisono/")
    own = [frame for frame in stack if not any(name in frame.filename for name in libraries)]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
