"""Finds where a number first stops being finite: in which layer, forward or backward."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from ..compat.keras_private.layers import layers_of, own_weights, watch_calls
from ..distribute.arguments import function, show
from ..distribute.replicas import copies_of
from ..optimizers.loss_scale.scale_rule import positive_scale

Event: TypeAlias = tuple[str, keras.layers.Layer, Any]
"""("start", layer, inputs) or ("end", layer, outputs) of one call."""

_NO_BATCH = "`batch` must be one batch, as (x, y) or next(iter(dataset)). Received: {}"


@dataclasses.dataclass(frozen=True)
class NonFinite:
    """A tensor with values that are not finite.

    Attributes:
        kind: "input", "weight", "output", "loss", "output gradient", "weight gradient" or "input gradient".
        name: path of the layer (outputs and gradients) or the variable (weights); part of the batch.
        dtype: its dtype.
        size: number of elements.
        nan: how many of them are NaN.
        infinite: how many are infinite.
        layer: name of the layer; None for an input or the loss.
    """

    kind: str
    name: str
    dtype: str
    size: int
    nan: int
    infinite: int
    layer: str | None = None

    def __str__(self) -> str:
        what = {
            "input": f"the batch's {self.name}",
            "weight": f"weight {self.name!r}",
            "loss": "the loss",
            "output": f"the output of layer {self.name!r}",
            "output gradient": f"the gradient of the output of layer {self.name!r}",
            "weight gradient": f"the gradient of the weights of layer {self.name!r}",
            "input gradient": f"the gradient that layer {self.name!r} passes back to its inputs",
        }[self.kind]
        return f"{what} ({self.dtype}: {self.infinite} of {self.size} values infinite, {self.nan} NaN)"


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found.

    Attributes:
        first: the first layer output that is not finite, in the order in which layers ran; if all are finite, the loss;
            if that is finite, the first gradient, in backward order. None: everything is finite on this batch.
        inputs: parts of the batch that are not finite.
        weights: variables of the model that are not finite before the step.
    """

    first: NonFinite | None
    inputs: tuple[NonFinite, ...] = ()
    weights: tuple[NonFinite, ...] = ()

    def __str__(self) -> str:
        if self.first is None and not self.inputs and not self.weights:
            return "On this batch every output, the loss and every gradient is finite"
        parts = []
        if self.first is not None:
            parts.append(f"The first value that is not finite is in {self.first}")
        if self.inputs:
            parts.append("The data are not finite: " + ", ".join(map(str, self.inputs)))
        if self.weights:
            parts.append("The model is not finite before the step: " + ", ".join(map(str, self.weights)))
        return ". ".join(parts)


def diagnose(
    model: keras.Model, batch: Any, loss: Callable[..., Any] | None = None, loss_scale: float = 1.0
) -> Diagnosis:
    """Find the first layer whose output or gradient is not finite, by repeating one step eagerly.

    It changes no weight, no average and no random generator. Dropout draws the numbers of the next step.

    Args:
        model: `keras.Model`, built.
        batch: `(x,)`, `(x, y)` or `(x, y, sample_weight)`, or x alone; arrays or tensors.
        loss: `loss(x=, y=, y_pred=, sample_weight=)` -> scalar; None: `model.compute_loss` of a compiled model.
        loss_scale: the loss is multiplied by it before the backward pass: the scale at which the step overflowed.

    Returns:
        A `Diagnosis`; as a string it is one or a few sentences.

    Examples:
        >>> print(unisono.mixed_precision.diagnose(model, (x, y)))
        On this batch every output, the loss and every gradient is finite
        >>> found = unisono.mixed_precision.diagnose(model, (x, y * np.inf))  # `first`: a `NonFinite`
        >>> found.first.kind, found.inputs[0].name, found.inputs[0].infinite
        ('loss', 'y', 64)
    """
    if not isinstance(model, keras.Model):
        raise TypeError(f"`model` must be a keras.Model. Received: {show(model)}")
    if batch is None or isinstance(batch, str | tf.data.Dataset):
        raise ValueError(_NO_BATCH.format(show(batch)))
    if loss is None and not model.compiled:
        raise ValueError("`loss` must be passed for a model that is not compiled. Received: None")
    function("loss", loss, optional=True)
    loss_scale = positive_scale("loss_scale", loss_scale)
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(_tensors(batch))
    events: list[Event] = []
    with keras.StatelessScope(), contextlib.ExitStack() as stack:
        tape = stack.enter_context(tf.GradientTape(persistent=True))
        for layer in layers_of(model)[1:]:
            stack.enter_context(watch_calls(layer, lambda *event: events.append(event)))
        y_pred = model(x, training=True)
        parts = {"x": x, "y": y, "sample_weight": sample_weight}
        compute = loss or functools.partial(model.compute_loss, training=True)
        value = tf.reduce_sum(compute(y_pred=y_pred, **parts))
        value = tf.cast(value, tf.float32) if value.dtype.size < 4 else value
        scaled = value * tf.cast(loss_scale, value.dtype)
    ended = ((layer, tf.nest.flatten(tensors)) for event, layer, tensors in events if event == "end")
    outputs = (_check("output", str(layer.path), tensors, layer.name) for layer, tensors in ended)
    first = next(filter(None, outputs), None) or _check("loss", "loss", [value])
    first = first or _first_gradient(tape, scaled, events)
    inputs = [_check("input", name, tf.nest.flatten(part)) for name, part in parts.items()]
    weights = [_check("weight", w.path, [tf.convert_to_tensor(w)]) for w in model.weights]
    return Diagnosis(first, tuple(f for f in inputs if f), tuple(f for f in weights if f))


def batch_statistics(batch: Any) -> list[dict[str, Any]]:
    """Return a list of one dict for each tensor of a batch (as in `diagnose`); min, max and mean are those of finite values.

    Examples:
        >>> unisono.mixed_precision.batch_statistics(np.array([1.0, np.nan]))
        [{'name': 'x', 'shape': (2,), 'dtype': 'float64', 'nan': 1, 'infinite': 0, 'min': 1.0, 'max': 1.0, 'mean': 1.0}]
    """
    parts = batch if isinstance(batch, tuple | list) else (batch,)
    names = ("x", "y", "sample_weight") if len(parts) <= 3 else [f"data[{i}]" for i in range(len(parts))]
    result = []
    for part, structure in zip(names, _tensors(tuple(parts))):
        tensors = [t for t in tf.nest.flatten(structure) if t is not None]
        for index, tensor in enumerate(tensors):
            name = part if len(tensors) == 1 else f"{part}[{index}]"
            entry = {"name": name, "shape": tuple(tensor.shape), "dtype": tensor.dtype.name}
            result.append(entry | _statistics(tensor))
    return result


def _statistics(tensor: Any) -> dict[str, Any]:
    if not isinstance(tensor, tf.Tensor) or not (tensor.dtype.is_floating or tensor.dtype.is_integer):
        return {}
    values: Any = tf.cast(tf.reshape(tensor, [-1]), tf.float64)
    numbers = values.numpy()
    counts = {"nan": int(np.isnan(numbers).sum()), "infinite": int(np.isinf(numbers).sum())}
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return counts
    return counts | {"min": float(finite.min()), "max": float(finite.max()), "mean": float(finite.mean())}


def _first_gradient(tape: tf.GradientTape, scaled: tf.Tensor, events: list[Event]) -> NonFinite | None:
    """Return the first in backward order: for a layer first its outputs, then its weights, then its inputs."""
    for event, layer, tensors in reversed(events):
        kinds: dict[str, list[Any]] = {"input gradient": _floats(tensors)}
        if event == "end":
            weights = [copies_of(v)[0] for v in own_weights(layer)]
            kinds = {"output gradient": _floats(tensors), "weight gradient": weights}
        for kind, sources in kinds.items():
            gradients: Any = tape.gradient(scaled, sources)
            if found := _check(kind, str(layer.path), gradients, layer.name):
                return found
    return None


def _check(kind: str, name: str, tensors: list[Any], layer: str | None = None) -> NonFinite | None:
    """Return the values that are not finite in `tensors`, counted together; None if there are none."""
    tensors = _floats([t.values if isinstance(t, tf.IndexedSlices | tf.SparseTensor) else t for t in tensors])
    nan = sum(int(tf.math.count_nonzero(tf.math.is_nan(t))) for t in tensors)
    infinite = sum(int(tf.math.count_nonzero(tf.math.is_inf(t))) for t in tensors)
    if not nan and not infinite:
        return None
    size = sum(int(tf.size(t)) for t in tensors)
    return NonFinite(kind, name, tensors[0].dtype.name, size, nan, infinite, layer)


def _floats(tensors: Any) -> list[Any]:
    return [t for t in tf.nest.flatten(tensors) if isinstance(t, tf.Tensor) and t.dtype.is_floating]


def _tensors(batch: Any) -> Any:
    """Return the batch as tensors, at least one of which has an axis for samples."""
    try:
        tensors = tf.nest.map_structure(
            lambda value: value if value is None or tf.is_tensor(value) else tf.convert_to_tensor(value),
            batch,
        )
        ranks = [each.shape.rank for each in tf.nest.flatten(tensors) if each is not None]
    except (AttributeError, TypeError, ValueError, tf.errors.OpError) as error:
        raise ValueError(_NO_BATCH.format(show(batch))) from error
    if all(rank == 0 for rank in ranks):
        raise ValueError(_NO_BATCH.format(show(batch)))
    return tensors
