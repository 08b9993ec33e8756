"""Which argument does not fit the model, where building it or its first step failed: one sentence instead of an operation's.

The model, its loss and its metrics are called once more, one after the other, on placeholders in a graph that is thrown
away: what fails there may not fit. It is said so only where the shapes disagree; otherwise the error itself is raised, or
said with its line. Nothing is called again where nothing has failed, but for validation data of another layout than the
training data, which would otherwise fail after the first epoch.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.functional import graph_of
from ...compat.training import (
    compute_loss,
    compute_output_spec,
    given_metrics,
    losses_of_classes,
    overrides_compute_loss,
)
from ...distribute.arguments import shown
from ..compile_checks import output_names
from ..inputs import Source
from ..inputs.convert import is_memory_mapped
from ..inputs.structure import is_standard, unpack
from .misfit_causes import is_cause, line_of_users

_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    RuntimeError,
    tf.errors.InvalidArgumentError,
    tf.errors.UnimplementedError,
)
_LABEL = re.compile(r"label value of (-?\d+) which is outside the valid range of \[0, (\d+)\)")
_BOLD = re.compile(r"\x1b\[1m(.*?)\x1b\[0m", re.DOTALL)  # Keras prints the reason of a layer's error in bold


class MisfitError(ValueError, KeyError):
    """An argument does not fit the model. A KeyError too, as some of Keras' errors about structures are."""

    __str__ = Exception.__str__


@contextlib.contextmanager
def explained(
    model: TrainedModel,
    spec: Any,
    rows: int | None = None,
    step: str = "train_step",
    first: bool = True,
    argument: str = "",
) -> Iterator[None]:
    """An error of the block becomes a `MisfitError`, if an argument does not fit.

    Args:
        model: the model.
        spec: nest of `tf.TypeSpec` of one batch.
        rows: int or None; rows of the batch.
        step: "train_step", "test_step" or "predict_step"; a step of the user's own is not explained.
        first: whether nothing has been computed on such batches before; otherwise only labels are explained.
        argument: of `fit` that the batches are from, where that is not `x`.
    """
    try:
        yield
    except MisfitError:
        raise
    except _ERRORS as error:
        sentence = _label_of(error, model, step) or (misfit(model, spec, rows, step) if first else None)
        if sentence is None:
            raise
        raise MisfitError(f"`{argument}`: {sentence}" if argument else sentence) from error


def _label_of(error: Exception, model: TrainedModel, step: str) -> str | None:
    """What is wrong with a label that an operation has refused."""
    found = _LABEL.search(str(error))
    if found is None or model._overrides_step(step):
        return None
    return _no_class("y", found[1], int(found[2]))


def _no_class(place: str, label: Any, classes: int) -> str:
    return (
        f"`{place}` holds the label {label}, but the model has scores for {classes} classes: give class numbers from 0 to "
        f"{classes - 1}, or the model more outputs."
    )


def check_labels(model: TrainedModel, source: Source, step: str) -> None:
    """Refuses class numbers in arrays that the model has no output for: one pass over them.

    Args:
        model: the model, built.
        source: of the batches; its targets are looked at once.
        step: "train_step" or "test_step"; what a custom step does with its targets is not known.
    """
    targets, source.targets = source.targets, None
    graph = graph_of(model)
    if targets is None or graph is None or model._overrides_step(step) or overrides_compute_loss(model):
        return
    for path, ignored in losses_of_classes(model):
        labels, scores = (_at(path, each) for each in (targets, graph.output))
        classes = None if scores is None else scores.shape[-1]
        if classes is None or not isinstance(labels, np.ndarray | tf.Tensor) or is_memory_mapped(labels):
            continue
        array = np.asarray(labels)
        low, high = array.min(), array.max()
        if ignored is not None and not (low > -1 and high < classes):
            array = array[array != ignored]
            low, high = (array.min(), array.max()) if array.size else (0, 0)
        if not (low > -1 and high < classes):
            place = "".join(["y", *(f"[{key!r}]" for key in path)])
            raise MisfitError(_no_class(place, high if low > -1 else low, classes))


def _at(path: tuple[Any, ...], structure: Any) -> Any:
    """What is at this place of a nest; None where there is nothing."""
    for key in path:
        try:
            structure = structure[key]
        except (LookupError, TypeError):
            return None
    return structure


def check_validation(model: TrainedModel, spec: Any, rows: int | None, training_spec: Any) -> None:
    """Refuses validation data that does not fit the model, before the first epoch instead of after it.

    Args:
        model: the model, built.
        spec: of a batch of the validation data.
        rows: int or None; rows of such a batch.
        training_spec: of a batch of the training data.

    Context: cross-replica, under the model's strategy.
    """
    if _layout(spec) == _layout(training_spec):
        return
    sentence = misfit(model, spec, rows, "test_step")
    if sentence is not None:
        raise MisfitError(f"`validation_data`: {sentence}")


def misfit(model: TrainedModel, spec: Any, rows: int | None, step: str) -> str | None:
    """The sentence that says which argument does not fit the model; None if all do, or if it cannot be told."""
    if model._overrides_step(step) or not is_standard(spec):
        return None
    x, y, sample_weight = unpack(spec)
    if step != "predict_step" and y is None and model.loss is not None and not overrides_compute_loss(model):
        return (
            f"`y` is None, but the model was compiled with loss={shown(model.loss)}: give the targets as `y`, or as the "
            "second part of what the dataset gives."
        )
    reached = ["x"]
    outputs: list[Any] = []

    def call_one_after_the_other() -> Any:
        tensors = [_placeholders(part, rows) for part in (x, y, sample_weight)]
        y_pred = model(tensors[0], training=False)
        outputs.append(keras.tree.map_structure(lambda t: t.shape, y_pred))
        if step == "predict_step" or y is None:
            return y_pred
        for part in () if overrides_compute_loss(model) else ("y", "sample_weight"):
            if part == "sample_weight" and sample_weight is None:
                continue
            reached.append(part)
            weight = tensors[2] if part == "sample_weight" else None
            compute_loss(
                model, x=tensors[0], y=tensors[1], y_pred=y_pred, sample_weight=weight, training=False
            )
        reached.append("metrics")
        model.compute_metrics(tensors[0], tensors[1], y_pred, tensors[2])
        return y_pred

    try:
        with model._strategy_scope():
            compute_output_spec(call_one_after_the_other)
    except Exception as error:  # of whatever kind: the call that really failed has been one of `_ERRORS`
        parts = {"x": x, "y": y, "sample_weight": sample_weight}
        reason = _reason(error)
        if is_cause(model, reached[-1], parts, outputs, reason):
            return _sentence(model, reached[-1], parts, outputs, reason)
        if reached[-1] == "y":
            made = f"targets of {_shapes(y)} and outputs of {_shapes(outputs[0])}"
            return f"loss={shown(model.loss)} failed for {made}: {reason}{line_of_users(error)}."
    return None


def _sentence(model: TrainedModel, part: str, parts: dict[str, Any], outputs: list[Any], reason: str) -> str:
    if part == "x":
        takes = ", ".join(f"{t.name} {tuple(t.shape)}" for t in getattr(model, "inputs", None) or ())
        return f"`x` of {_shapes(parts['x'])} does not fit the model{f', which takes {takes}' if takes else ''}: {reason}."
    made = f"targets of {_shapes(parts['y'])} and outputs of {_shapes(outputs[0])}"
    if part == "metrics":
        return f"Invalid `metrics` {shown(given_metrics(model))} for {made}: {reason}."
    if part == "sample_weight":
        return f"`sample_weight` of {_shapes(parts[part])} does not fit the losses of {made}: give one weight for each row."
    loss = f"loss={shown(model.loss)}"
    if "`loss_weights`" in reason:
        return f"Invalid `loss_weights` for {loss} and {len(tf.nest.flatten(parts['y']))} targets: {reason}."
    if isinstance(model.loss, dict):
        names = output_names(model)
        if names and set(names) != set(model.loss):
            return (
                f"`loss` names the outputs {', '.join(map(repr, model.loss))}, but those of the model are "
                f"{', '.join(map(repr, names))}: give a loss, or None, for each ({reason})."
            )
    return f"`y` does not fit {loss}: {_cure(model, parts['y'], outputs[0])}. Received: {made} ({reason})."


def _cure(model: TrainedModel, y: Any, outputs: Any) -> str:
    """What to give instead, after the kind of mistake."""
    name = str(
        getattr(model.loss, "name", None) or getattr(model.loss, "__name__", None) or model.loss
    ).lower()
    if not tf.nest.is_nested(y) and not tf.nest.is_nested(
        list(outputs) if isinstance(outputs, dict) else outputs
    ):
        if y.shape.rank is None or tf.TensorShape(outputs).rank is None:
            return "give targets in the structure and the shape of the outputs"
        more = y.shape.rank >= len(outputs)
        if name.replace("_", "") == "sparsecategoricalcrossentropy" and more:
            return "it takes class numbers, so for one-hot targets use categorical_crossentropy"
        if name.replace("_", "") == "categoricalcrossentropy" and tuple(y.shape)[1:] in ((), (1,)):
            return "it takes one-hot targets, so for class numbers use sparse_categorical_crossentropy"
    return "give targets in the structure and the shape of the outputs"


def _placeholders(spec: Any, rows: int | None) -> Any:
    if spec is None:
        return None

    dense = all(isinstance(part, tf.TensorSpec) for part in tf.nest.flatten(spec) if part is not None)

    def placeholder(part: Any) -> Any:
        if part is None:  # an input that is left out
            return None
        shape = part.shape
        if dense and rows is not None and shape.rank and shape[0] is None:
            shape = tf.TensorShape([rows]).concatenate(shape[1:])
        return tf.compat.v1.placeholder(part.dtype, shape)

    parts = [placeholder(part) for part in tf.nest.flatten(spec, expand_composites=True)]
    return tf.nest.pack_sequence_as(spec, parts, expand_composites=True)


def _layout(spec: Any) -> Any:
    """What must be the same for two batches to fit the same model: everything but the rows."""
    leaves = [
        part if part is None else (type(part), getattr(part, "dtype", None), str(part.shape[1:]))
        for part in tf.nest.flatten(spec)
    ]
    return str(tf.nest.map_structure(lambda _: 0, spec)), leaves


def _shapes(structure: Any) -> str:
    """The shapes of a nest in a few words, with the dtype where it is a string."""

    def text(part: Any) -> str:
        shape = "None" if part is None else _shape(getattr(part, "shape", part))
        return f"strings {shape}" if getattr(part, "dtype", None) == tf.string else shape

    if (
        isinstance(structure, tf.TensorShape)
        or not tf.nest.is_nested(structure)
        or isinstance(structure, tf.TypeSpec)
    ):
        return f"shape {text(structure)}"
    return f"shapes {keras.tree.map_structure(text, structure)}".replace("'", "")


def _shape(shape: Any) -> str:
    shape = tf.TensorShape(shape)
    return "unknown" if shape.rank is None else str(tuple(shape))


def _reason(error: Exception) -> str:
    """Why, in one line: the first of the error's, or what Keras prints in bold."""
    bold = _BOLD.search(str(error))
    text = bold[1] if bold else str(error)
    text = re.sub(r"\s+", " ", text).strip().rstrip(".")
    return text if len(text) <= 200 else f"{text[:197]}..."
