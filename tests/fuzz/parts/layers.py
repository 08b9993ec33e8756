"""The layers of a body, each from (samples, WIDTH) or (samples, steps, WIDTH) to the same shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops

WIDTH = 5


class AddsLoss(layers.Layer):
    """Adds a loss that depends on its input."""

    def __init__(self, value: Callable, only_in_training: bool = False) -> None:
        super().__init__()
        self.supports_masking = True
        self.value, self.only_in_training = value, only_in_training

    def call(self, x, training=False):
        if training or not self.only_in_training:
            self.add_loss(self.value(x if x.dtype == "float64" else ops.cast(x, "float32")))
        return x


class KeepsState(layers.Layer):
    """Has a variable that training updates from the layer's input."""

    def __init__(self, change: Callable, shape: tuple[int, ...] = (), **arguments: Any) -> None:
        super().__init__()
        self.supports_masking = True
        self.change, self.arguments = change, {"name": "state", "shape": shape, **arguments}

    def build(self, input_shape):
        self.state = self.add_weight(**self.arguments, initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            self.change(self.state, x)
        return x


def _count(state, x):
    state.assign_add(ops.cast(ops.shape(x)[0], state.dtype))


def _sum(state, x):
    state.assign_add(ops.cast(ops.sum(x, axis=tuple(range(len(x.shape) - 1))), state.dtype))


def _steps(state, x):
    state.assign_add(1)


def _maximum(state, x):
    state.assign(ops.maximum(state, ops.cast(ops.max(x), state.dtype)))


def _average(state, x):
    mean = ops.mean(x, axis=tuple(range(len(x.shape) - 1)))
    state.assign(0.9 * state + 0.1 * ops.cast(mean, state.dtype))


def _average_of_counts(state, x):
    """As in vector quantization: a moving average of each code's count of nearest inputs."""
    chosen = ops.one_hot(ops.argmax(ops.reshape(x, (-1, WIDTH)), axis=-1), WIDTH)
    state.assign(0.9 * state + 0.1 * ops.cast(ops.sum(chosen, axis=0), state.dtype))


def _dense(**arguments) -> layers.Layer:
    return layers.Dense(WIDTH, activation="tanh", **arguments)


LAYERS: dict[str, Callable[[], layers.Layer]] = {
    "dense": _dense,
    "shared": _dense,
    "regularized": lambda: _dense(kernel_regularizer="l2", bias_regularizer="l1"),
    "activity regularizer": lambda: _dense(activity_regularizer="l2"),
    "layer normalization": layers.LayerNormalization,
    "frozen batch normalization": lambda: layers.BatchNormalization(trainable=False),
    "synchronized batch normalization": lambda: layers.BatchNormalization(synchronized=True),
    "group normalization": lambda: layers.GroupNormalization(groups=1),
    "adapted normalization": lambda: layers.Normalization(mean=0.3, variance=1.7),
    "frozen": lambda: _dense(trainable=False),
    "nested model": lambda: keras.Sequential([_dense(), layers.Dense(WIDTH)]),
    "spectral normalization": lambda: layers.SpectralNormalization(_dense()),
    "adds a mean": lambda: AddsLoss(lambda x: 0.1 * ops.mean(ops.square(x))),
    "adds a sum": lambda: AddsLoss(lambda x: 0.01 * ops.sum(ops.square(x))),
    "adds a sum in training": lambda: AddsLoss(lambda x: 0.01 * ops.sum(ops.square(x)), True),
    "adds a sum of negative parts": lambda: AddsLoss(lambda x: 0.01 * ops.sum(ops.relu(-x))),
    "counts samples": lambda: KeepsState(_count, dtype="int32"),
    "counts calls": lambda: KeepsState(lambda state, x: state.assign_add(1), dtype="int32"),
    "sums": lambda: KeepsState(_sum, (WIDTH,)),
    "maximum": lambda: KeepsState(_maximum),
    "moving average": lambda: KeepsState(_average, (WIDTH,)),
    "moving average of counts": lambda: KeepsState(_average_of_counts, (WIDTH,)),
    "declared sum": lambda: KeepsState(_sum, (WIDTH,), aggregation="sum"),
    "declared mean": lambda: KeepsState(_average, (WIDTH,), aggregation="mean"),
    "declared first": lambda: KeepsState(_steps, aggregation="only_first_replica"),
}


def entry(kind: str, masked: bool) -> list[layers.Layer]:
    """The layers that follow an input of a kind, up to (samples, [steps,] WIDTH)."""
    if kind == "tokens":
        return [layers.Embedding(7, WIDTH, mask_zero=masked)]
    first = [layers.Masking()] if kind == "series" and masked else []
    return [*first, _dense()]


class SelfAttention(layers.Layer):
    """Each step attends to the unmasked steps."""

    def __init__(self) -> None:
        super().__init__()
        self.supports_masking = True
        self.attention = layers.MultiHeadAttention(2, 3)

    def build(self, input_shape):
        self.attention.build(input_shape, input_shape)

    def call(self, x, mask=None):
        return self.attention(x, x, query_mask=mask, value_mask=mask)


POOLS: dict[str, Callable[[], list[layers.Layer]]] = {
    "average": lambda: [layers.GlobalAveragePooling1D()],
    "recurrent": lambda: [layers.SimpleRNN(WIDTH)],
    "gated": lambda: [layers.Bidirectional(layers.GRU(WIDTH), merge_mode="ave")],
    "attention": lambda: [SelfAttention(), layers.GlobalAveragePooling1D()],
    "convolution": lambda: [layers.Conv1D(WIDTH, 2, padding="causal"), layers.GlobalMaxPooling1D()],
    "none": lambda: [layers.SimpleRNN(WIDTH, return_sequences=True)],
}


def pool(kind: str) -> list[layers.Layer]:
    """The layers that pool the steps of a sequence."""
    return POOLS[kind]()


class FirstValue(layers.Layer):
    """From (samples, ..., 1) to (samples, ...)."""

    def call(self, x):
        return x[..., 0]


def head(kind: str, name: str) -> list[layers.Layer]:
    """The layers of one kind of output; the last one has the name of the output."""
    if kind == "rank 1":
        return [keras.layers.Dense(1), FirstValue(name=name)]
    if kind == "binary":
        return [keras.layers.Dense(1, activation="sigmoid", name=name)]
    return [keras.layers.Dense({"values": 2, "classes": 3}[kind], name=name)]
