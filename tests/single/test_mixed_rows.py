"""Layers that compute with statistics of a replica's rows are named before the first step; others are not."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import FLOAT32, assert_close, mirrored

import unisono

L, ops = keras.layers, keras.ops
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(22, 6)).astype("float32"), RNG.normal(size=(22, 2)).astype("float32")


class Deviation(L.Layer):
    """The standard deviation of a batch as one more feature, as discriminators have it."""

    def call(self, x):
        deviation = ops.mean(ops.std(x, axis=0))
        return ops.concatenate([x, ops.ones_like(x[:, :1]) * deviation], axis=1)


class Centered(L.Layer):
    def call(self, x):
        return x - ops.mean(x, axis=0, keepdims=True)


class FirstRow(L.Layer):
    def call(self, x):
        return x - x[0]


class CenteredByAll(L.Layer):
    def call(self, x):
        return x - ops.mean(unisono.distribute.gather(x), axis=0, keepdims=True)


class OfEachRow(L.Layer):
    """Statistics of each row, sizes, masks, weights, a loss: none of all rows."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],))
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x):
        self.add_loss(1e-3 * ops.mean(ops.square(x)))
        self.seen.assign(ops.max(x))
        rows = tf.shape(x)[0]
        x = (x - ops.mean(x, -1, keepdims=True)) / (ops.std(x, -1, keepdims=True) + 1e-3)
        x = ops.reshape(x, (rows, 2, 3)) + ops.cast(ops.arange(rows)[:, None, None] * 0, x.dtype)
        x = ops.reshape(x * ops.softmax(x, axis=1), (-1, 6)) * ops.mean(ops.square(self.scale))
        return ops.where(ops.any(x > 100.0), x * 0.0, x)


class Recurrent(L.Layer):
    def build(self, shape):
        self.cell = L.GRU(4)
        self.attention = L.MultiHeadAttention(1, 2)

    def call(self, x):
        x = ops.reshape(x, (-1, 3, 2))
        return self.cell(self.attention(x, x))


def fit(layer, replicas):
    keras.utils.set_random_seed(3)
    with mirrored(replicas).scope() if replicas > 1 else tf.distribute.get_strategy().scope():
        inputs = keras.Input((6,))
        model = unisono.Model(inputs, L.Dense(2)(layer(name="suspect")(L.Dense(6)(inputs))))
        model.compile(keras.optimizers.SGD(0.05), "mse")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    return [v.numpy() for v in model.variables], [
        s for each in said if "statistics" in (s := str(each.message))
    ]


@pytest.mark.parametrize("layer", [Deviation, Centered, FirstRow])
def test_layers_that_mix_rows_are_named(layer):
    _, said = fit(layer, 2)
    assert len(said) == 1 and "suspect" in said[0] and "dense" not in said[0] and "gather" in said[0]
    assert fit(layer, 1)[1] == []


@pytest.mark.parametrize("layer", [CenteredByAll, OfEachRow, Recurrent])
def test_layers_that_do_not_are_not_named(layer):
    values, said = fit(layer, 2)
    assert said == []
    assert_close(values, fit(layer, 1)[0], FLOAT32, "variables")
