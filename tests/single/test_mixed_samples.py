"""Layers with statistics across samples match a single device, and a warning contains their names."""

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
    """The standard deviation of a batch as one more feature, as in GAN discriminators."""

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
    """Per-sample statistics, sizes, masks, weights, a loss: nothing across samples."""

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
        s for each in said if "BatchNormalization" in (s := str(each.message))
    ]


class Block(L.Layer):
    """Contains a layer with computation across samples, and stores an average of its output."""

    def build(self, shape):
        self.mixing, self.dense = Normalized(name="suspect"), L.Dense(6, activation="tanh")
        self.average = self.add_weight(shape=(6,), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        x = self.mixing(self.dense(x), training=training)
        self.average.assign(0.9 * self.average + 0.1 * ops.mean(x, axis=0))
        return x


class Normalized(L.Layer):
    """A hand-written batch normalization, with averages for inference, a weight and a loss."""

    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)
        self.variance = self.add_weight(shape=(shape[-1],), initializer="ones", trainable=False)
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x, training=False):
        mean, variance = self.mean, self.variance
        if training:
            mean, variance = ops.mean(x, 0), ops.var(x, 0)
            self.mean.assign(0.9 * self.mean + 0.1 * mean)
            self.variance.assign(0.9 * self.variance + 0.1 * variance)
            self.add_loss(1e-2 * ops.mean(ops.square(variance - 1.0)))
        return (x - mean) / ops.sqrt(variance + 1e-3) * self.scale


class Sorted(L.Layer):
    """Compares with the median, for several inputs and outputs."""

    def call(self, inputs):
        middle = ops.sort(inputs["x"], axis=0)[ops.shape(inputs["x"])[0] // 2]
        return {"x": inputs["x"] - middle, "y": inputs["y"] * 2.0}


class Pair(L.Layer):
    def build(self, shape):
        self.sorted = Sorted(name="suspect")

    def call(self, x):
        out = self.sorted({"x": x, "y": x + 1.0})
        return out["x"] + out["y"]


class Grouped(L.Layer):
    """The deviation within groups of samples formed by a reshape: it mixes samples, without a batch-wide statistic."""

    def call(self, x):
        groups = ops.reshape(x[: ops.shape(x)[0] // 2 * 2], (2, -1, 3, 2))
        deviation = ops.std(groups, axis=0)
        rows = ops.concatenate([deviation, deviation, deviation], axis=0)[: ops.shape(x)[0]]
        return x + ops.reshape(rows, (-1, 6))


class Similar(L.Layer):
    """Attention between samples."""

    def call(self, x):
        weights = ops.softmax(ops.matmul(x, ops.transpose(x)), axis=-1)
        return x + ops.matmul(weights, x)


class Rolled(L.Layer):
    """Mixes each sample with the one before, as mixup does."""

    def call(self, x, training=False):
        return 0.7 * x + 0.3 * ops.roll(x, 1, axis=0) if training else x


@pytest.mark.short("3-Rolled", "2-Pair", "2-Grouped", "3-FirstRow")
@pytest.mark.parametrize(
    "layer", [Deviation, Centered, FirstRow, Normalized, Block, Pair, Grouped, Similar, Rolled]
)
@pytest.mark.parametrize("replicas", [2, 3])
def test_layers_that_mix_samples_have_those_of_all_replicas(layer, replicas):
    values, said = fit(layer, replicas)
    assert said == []
    expected, nothing = fit(layer, 1)
    assert nothing == []
    assert_close(
        values, expected, 1e-4, "variables"
    )  # float32 sums in a different order, divided by small deviations


def test_predictions_of_a_layer_that_mixes_samples_are_those_of_one_device():
    found = []
    for replicas in (1, 3):
        keras.utils.set_random_seed(3)
        with mirrored(replicas).scope() if replicas > 1 else tf.distribute.get_strategy().scope():
            inputs = keras.Input((6,))
            model = unisono.Model(inputs, L.Dense(2)(Deviation()(inputs)))
            model.compile("sgd", "mse")
        found.append(
            [model.predict(X, batch_size=8, verbose=0), model.evaluate(X, Y, batch_size=8, verbose=0)]
        )
    assert_close(found[1], found[0], FLOAT32, "predictions")


@pytest.mark.short("OfEachRow", "CenteredByAll")
@pytest.mark.parametrize("layer", [CenteredByAll, OfEachRow, Recurrent])
def test_layers_that_do_not_mix_samples_match_one_device(layer):
    values, said = fit(layer, 2)
    assert said == []
    assert_close(values, fit(layer, 1)[0], 1e-4, "variables")  # biases before a normalization get no gradient
