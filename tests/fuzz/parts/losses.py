"""The compiled losses: Keras' own and custom ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from ..case import Output


def across(y_true: Any, y_pred: Any) -> Any:
    """A scalar that depends on every pair of samples."""
    flat = ops.reshape(y_pred, (ops.shape(y_pred)[0], -1))
    target = ops.reshape(ops.cast(y_true, y_pred.dtype), (ops.shape(y_pred)[0], -1))
    likeness, wanted = ops.matmul(flat, ops.transpose(flat)), ops.matmul(target, ops.transpose(target))
    return ops.mean(ops.square(ops.tanh(likeness) - ops.tanh(wanted)))


def _error(y_true: Any, y_pred: Any) -> Any:
    return ops.square(ops.cast(y_true, y_pred.dtype) - y_pred)


def as_wide(weight: Any, values: Any) -> Any:
    """Sample weights with the dtype and rank of `values`."""
    weight = ops.cast(weight, values.dtype)
    while len(weight.shape) < len(values.shape):
        weight = ops.expand_dims(weight, -1)
    return weight


class OwnCall(keras.losses.Loss):
    """A loss for each sample."""

    def call(self, y_true, y_pred):
        error = _error(y_true, y_pred)
        return ops.mean(error, axis=-1) if len(error.shape) > 1 else error


class OwnCallAcross(OwnCall):
    """A loss for each sample, which depends on the other samples."""

    def call(self, y_true, y_pred):
        return super().call(y_true, y_pred) + ops.mean(
            ops.abs(y_pred - ops.mean(y_pred, axis=0, keepdims=True))
        )


class OwnDunder(keras.losses.Loss):
    """A loss that returns a scalar."""

    def __init__(self, value: Callable, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.value = value

    def __call__(self, y_true, y_pred, sample_weight=None):
        error = self.value(y_true, y_pred) if self.value is across else _error(y_true, y_pred)
        if sample_weight is not None:
            error = error * as_wide(sample_weight, error)
        return error if self.value is across else self.value(error)


def rows(y_true, y_pred):
    """One value for each sample."""
    error = ops.abs(ops.cast(y_true, y_pred.dtype) - y_pred)
    return ops.mean(error, axis=-1) if len(error.shape) > 1 else error


def _rows_of_classes(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True) ** 2


def _scalar_mean(y_true, y_pred):
    return ops.mean(ops.abs(y_true - y_pred))


def _scalar_sum(y_true, y_pred):
    return ops.sum(_error(y_true, y_pred))


OWN: dict[str, Callable[..., Any]] = {
    "rows": lambda **_: rows,
    "samples of classes": lambda **_: _rows_of_classes,
    "scalar mean": lambda **_: _scalar_mean,
    "scalar sum": lambda **_: _scalar_sum,
    "scalar across": lambda **_: across,
    "Loss.call": OwnCall,
    "Loss.call across": OwnCallAcross,
    "Loss.__call__ mean": lambda **_: OwnDunder(ops.mean),
    "Loss.__call__ sum": lambda **_: OwnDunder(ops.sum),
    "Loss.__call__ across": lambda **_: OwnDunder(across),
    "CosineSimilarity over samples": lambda **arguments: keras.losses.CosineSimilarity(axis=0, **arguments),
    "SparseCategoricalCrossentropy": lambda **arguments: keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, **arguments
    ),
}


def loss(output: Output) -> Any:
    """The loss compiled for an output."""
    if output.loss in OWN:
        return OWN[output.loss](reduction=output.reduction)
    if output.loss[0].isupper():
        return getattr(keras.losses, output.loss)(reduction=output.reduction)
    return output.loss
