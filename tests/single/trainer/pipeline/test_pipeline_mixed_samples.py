"""A pipeline warns of layers that combine the samples of a batch, which it computes for each micro-batch alone."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from unisono.distribute.pipeline import Pipeline


class Centered(keras.layers.Layer):
    def call(self, x):
        return x - tf.reduce_mean(x, 0, keepdims=True)


CROSS = {
    "layer": lambda x: Centered()(x),
    "operation": lambda x: x - keras.ops.mean(x, axis=0, keepdims=True),
    "order": lambda x: keras.layers.Lambda(lambda t: keras.ops.sort(t, 0))(x),
}
ALONE = {
    "dense": lambda x: keras.layers.Dense(3)(x),
    "statistics of a part": lambda x: keras.layers.BatchNormalization()(x),
    "random": lambda x: keras.layers.Dropout(0.5)(keras.layers.GaussianNoise(0.1)(x)),
    "attention": lambda x: keras.layers.Flatten()(
        keras.layers.MultiHeadAttention(1, 2)(*2 * [keras.layers.Reshape((5, 1))(x)])
    ),
    "recurrent": lambda x: keras.layers.LSTM(3)(keras.layers.Reshape((5, 1))(x)),
    "convolution": lambda x: keras.layers.Flatten()(
        keras.layers.Conv1D(2, 2)(keras.layers.Reshape((5, 1))(x))
    ),
}


def fit(layer, micro_batches):
    with Pipeline(["CPU:0", "CPU:1"], micro_batches).scope():
        inputs = keras.Input((4,))
        hidden = layer(keras.layers.Dense(5, "tanh")(inputs))
        model = unisono.Model(inputs, keras.layers.Dense(1)(hidden))
        model.compile("sgd", "mse")
    x = np.ones((4, 4), "float32")
    for _ in range(2):
        model.fit(x, x[:, :1], batch_size=4, verbose=0)


@pytest.mark.parametrize("kind", CROSS)
@pytest.mark.short("layer", "operation")
def test_layer_that_combines_samples_is_named_once(kind):
    with pytest.warns(UserWarning, match="combines the samples of a batch") as found:
        fit(CROSS[kind], 2)
    assert len(found) == 1


@pytest.mark.parametrize("kind", [*ALONE, "one micro-batch"])
@pytest.mark.short("dense", "attention", "recurrent", "one micro-batch")
def test_layers_that_treat_samples_alone_are_not_warned_about(kind):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fit(ALONE.get(kind, Centered()), 2 if kind in ALONE else 1)
    assert [str(each.message) for each in found] == []
