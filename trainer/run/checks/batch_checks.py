"""Whether batches have what the model, its loss and the step can take."""

from typing import Any

import keras
import tensorflow as tf

from ....compat.keras_private.functional import pair_inputs
from ....compat.keras_private.training import overrides_compute_loss
from ....distribute.arguments import show
from ....state.trained_model import TrainedModel
from ...compile_checks import takes_numbers
from ...inputs.batch import is_standard, unpack
from ...inputs.value_checks import holds_text


def check_batches(model: TrainedModel, spec: Any, step: str) -> None:
    """Reject batches that "train_step", "test_step" or "predict_step" cannot take.

    Keras' own step must be able to unpack them; a custom step accepts any. Strings are rejected where a model with declared
    inputs, a loss of Keras or `sample_weight` needs numbers.
    """
    custom_step = model._overrides_step(step)
    if custom_step and step == "predict_step":
        return
    if not custom_step and not is_standard(spec):
        raise ValueError(
            f"`x` yields tuples of {len(spec)}, but `{step}` takes x, (x,), (x, y) or (x, y, sample_weight): put several "
            f"inputs into one tuple or dict, or give the model a custom `{step}`. Received: {show(spec)}"
        )
    x, y, sample_weight = unpack(spec)
    for tensor, leaf in pair_inputs(model, x):
        if tensor.dtype != "string":
            begin = "encode them as numbers first, or begin the model with a keras.layers.StringLookup or TextVectorization"
            _reject_text("x", leaf, f"the input {tensor.name!r} of the model takes {tensor.dtype}: {begin}")
    if custom_step:
        return
    for tensor, leaf in pair_inputs(model, x):
        if leaf is None and not is_optional(model, tensor):
            raise ValueError(
                f"`x` has None for the input {tensor.name!r} of the model: pass an array, or declare "
                f"`keras.Input(..., optional=True)`. Received: {show(x)}"
            )
        found, taken = (tf.as_dtype(getattr(each, "dtype", None) or tensor.dtype) for each in (leaf, tensor))
        if found.is_complex and not taken.is_complex:
            raise ValueError(
                f"`x` is complex, but the input {tensor.name!r} of the model takes {tensor.dtype}: pass both parts as real "
                f"numbers, or declare `keras.Input(..., dtype={found.name!r})`. Received: {show(leaf)}"
            )
    _accept_real("sample_weight", sample_weight, "weights are numbers: pass one number for each sample")
    if step != "predict_step" and takes_numbers(model.loss) and not overrides_compute_loss(model):
        encode = "encode them first, for example with keras.layers.StringLookup"
        _accept_real("y", y, f"loss={show(model.loss)} takes numbers: {encode}")


def is_optional(model: TrainedModel, tensor: Any) -> bool:
    """Return whether a declared input of a model may be None."""
    layers = (layer for layer in model.layers if isinstance(layer, keras.layers.InputLayer))
    return any(layer.output is tensor and getattr(layer, "optional", False) for layer in layers)


def _reject_text(argument: str, spec: Any, fix: str) -> None:
    if holds_text(spec):
        raise ValueError(f"`{argument}` contains strings, but {fix}. Received: {show(spec)}")


def _accept_real(argument: str, spec: Any, fix: str) -> None:
    """Reject strings, and complex numbers, of which Keras would take the real part."""
    _reject_text(argument, spec, fix)
    if any(tf.as_dtype(leaf.dtype).is_complex for leaf in tf.nest.flatten(spec) if leaf is not None):
        raise ValueError(
            f"`{argument}` is complex, but Keras would ignore the imaginary part: pass real numbers. Received: {show(spec)}"
        )
