"""Finds the argument that does not fit the model, where building it or its first step failed: one sentence for users."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from ....compat.keras_private.functional import graph_of
from ....compat.keras_private.training import losses_of_classes, overrides_compute_loss
from ....state.trained_model import TrainedModel
from ...inputs import Source
from ...inputs.batch import is_standard, of_sizes, unpack
from ...inputs.class_weights import ClassWeights
from ...inputs.value_checks import LabelRule, at, sentence_in
from .mismatch import find_need_of_size, mismatch

_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    RuntimeError,
    tf.errors.InvalidArgumentError,
    tf.errors.UnimplementedError,
)
_SAMPLES = 7919  # a prime: no other dimension has this size


class ArgumentError(ValueError, KeyError):
    """An argument does not fit the model. Also a KeyError, like some of Keras' errors about structures."""

    __str__ = Exception.__str__


@contextlib.contextmanager
def explain_errors(
    model: TrainedModel,
    spec: Any,
    batch_size: int | None = None,
    step: str = "train_step",
    first: bool = True,
    argument: str = "",
) -> Iterator[None]:
    """Convert an error of the block to an `ArgumentError`, if an argument does not fit.

    Assertions of ours name a label or a weight. Any other argument is found by `mismatch`, for the `first`
    batch of such a `spec`, if no custom step got it. `argument` is that of `fit` with the batches, if it is not `x`.
    """
    try:
        yield
    except ArgumentError:
        raise
    except (*_ERRORS, AttributeError) as error:
        if isinstance(error, AttributeError) and not isinstance(error.__context__, _ERRORS):
            raise  # Keras raises one while it describes another error, where a target is absent
        sentence = sentence_in(error)
        if sentence is None and first:
            samples = batch_size or _SAMPLES
            sentence = mismatch(model, spec, samples, step) or find_need_of_size(model, spec, samples, step)
        number, sizes = getattr(error, "varying_batch", (0, ()))
        if sentence is None and len(sizes):
            sentence = mismatch(model, of_sizes(spec, iter(sizes)), _SAMPLES, step, varies=True)
            sentence = sentence and f"Batch {number} of the epoch (counted from 0): {sentence}"
        if sentence is None:
            raise
        sentence = sentence.replace(str(_SAMPLES), "batch")
        raise ArgumentError(f"`{argument}`: {sentence}" if argument else sentence) from error


def check_labels(model: TrainedModel, source: Source, step: str) -> None:
    """Reject class numbers for which the built model has no output, in batches as they are read, in arrays at once."""
    if model._overrides_step(step) or overrides_compute_loss(model):  # which may use targets differently
        return
    check_class_weights(model, source.spec, source.class_weights, step)
    check_weights(model, source.spec, {source.batch_size, source.usual_batch_size, source.held_samples}, step)
    try:
        source.check_values(tuple(rule for rule, _ in _label_rules(model)))
    except ValueError as error:
        raise ArgumentError(str(error)) from None


def _label_rules(model: TrainedModel) -> list[tuple[LabelRule, int]]:
    """Return the class numbers that each loss accepts, and the rank of its output."""
    rules = []
    for path, ignored in losses_of_classes(model):
        scores = at(path, getattr(graph_of(model), "output", None))
        if scores is not None and scores.shape[-1] is not None:
            rules.append((LabelRule(tuple(path), scores.shape[-1], ignored), len(scores.shape)))
    return rules


def check_class_weights(model: TrainedModel, spec: Any, weights: ClassWeights | None, step: str) -> None:
    """Reject `class_weight` for classes that do not exist, and for targets of several class numbers, taken for one-hot."""
    if weights is None or model._overrides_step(step) or overrides_compute_loss(model):
        return
    shape, rules = unpack(spec)[1].shape, _label_rules(model)
    columns = shape[-1] if (shape.rank or 0) > 1 and shape[-1] != 1 else None
    if columns is not None and any(shape.rank < rank for _, rank in rules):
        raise ArgumentError(
            f"`class_weight` is for one class number per sample, but `y` has the shape {tuple(shape)}: pass a "
            "`sample_weight` of that shape."
        )
    for count, ignored in [(rule.classes, rule.ignored) for rule, _ in rules] or [(columns, None)]:
        unknown = [number for number in weights.classes if number not in (*range(count or 0), ignored)]
        if count is not None and unknown:
            raise ArgumentError(
                f"`class_weight` has the classes {unknown}, but the model has {count}, from 0 to {count - 1}: leave them "
                "out, or give the model an output for each class."
            )


def check_weights(model: TrainedModel, spec: Any, sizes: set[int | None], step: str) -> None:
    """Reject weights that would be ignored, or would weigh another axis, which is as long as a batch of these `sizes`."""
    if not is_standard(spec) or model._overrides_step(step) or overrides_compute_loss(model):
        return
    _, y, weights = unpack(spec)
    targets, count = tf.nest.flatten(y), len(tf.nest.flatten(weights))
    if weights is not None and count > len(targets):
        raise ArgumentError(
            f"`sample_weight` has {count} arrays for {len(targets)} targets: pass one for each."
        )
    shapes = [getattr(target, "shape", tf.TensorShape(None)) for target in targets]
    if weights is not None and any(shape.rank and (sizes - {None}) & {*shape[1:]} for shape in shapes):
        sentence = mismatch(model, spec, _SAMPLES, step)
        if sentence is not None:
            raise ArgumentError(sentence)


def check_validation(model: TrainedModel, spec: Any, batch_size: int | None, training_spec: Any) -> None:
    """Reject validation data that does not fit the built model, before the first epoch instead of after it.

    `spec` is that of a batch of `batch_size` samples. Context: cross-replica, under the model's strategy.
    """
    if _layout(spec) == _layout(training_spec):
        return
    sentence = mismatch(model, spec, batch_size, "test_step")
    if sentence is not None:
        raise ArgumentError(f"`validation_data`: {sentence}")


def _layout(spec: Any) -> Any:
    """Return the properties that two batches of the same model must share: all but the number of samples."""
    leaves = [
        part if part is None else (type(part), getattr(part, "dtype", None), str(part.shape[1:]))
        for part in tf.nest.flatten(spec)
    ]
    return str(tf.nest.map_structure(lambda _: 0, spec)), leaves
