"""A custom step that changes its batch before it calls Keras' own: logs and weights equal plain Keras on any device."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import FLOAT64, assert_close, mirrored, scope

import unisono

pytestmark = pytest.mark.usefixtures("float64")
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(8, 4)), RNG.normal(size=(8, 3))
CUTS = [(0, 5), (5, 7), (7, 8)]


def positive(x, y):
    kept = tf.logical_or(x[:, 0] > 0, tf.range(tf.shape(x)[0]) < 1)
    return tf.boolean_mask(x, kept), tf.boolean_mask(y, kept)


def first_half(x, y):
    half = (tf.shape(x)[0] + 1) // 2
    return x[:half], y[:half]


def doubled_where_even(x, y):
    times = 2 - tf.shape(x)[0] % 2
    return tf.repeat(x, times, axis=0), tf.repeat(y, times, axis=0)


def trained(base, change, home, run_eagerly=False):
    class Changing(base):
        def train_step(self, data):
            return super().train_step(change(*data))

        def test_step(self, data):
            return super().test_step(change(*data))

    keras.utils.set_random_seed(1)
    with scope(home):
        inputs = keras.Input((4,))
        model = Changing(inputs, keras.layers.Dense(3)(inputs))
        model.compile("sgd", "mse", metrics=["mae"], jit_compile=False, run_eagerly=run_eagerly)
    spec = tf.TensorSpec((None, 4), tf.float64), tf.TensorSpec((None, 3), tf.float64)
    data = tf.data.Dataset.from_generator(lambda: ((X[a:b], Y[a:b]) for a, b in CUTS), output_signature=spec)
    data = data.apply(tf.data.experimental.assert_cardinality(len(CUTS)))
    history = model.fit(data, validation_data=data, epochs=2, shuffle=False, verbose=0).history
    return history, model.get_weights()


@pytest.mark.parametrize("change", [positive, first_half, doubled_where_even])
@pytest.mark.long
def test_step_with_a_changed_batch_weights_its_loss_like_keras(change):
    expected = trained(keras.Model, change, None, run_eagerly=True)
    assert_close(trained(unisono.Model, change, None, run_eagerly=True), expected, FLOAT64)
    assert_close(trained(unisono.Model, change, mirrored(3)), expected, FLOAT64)


@pytest.mark.parametrize("home", [None, 2], ids=["one", "mirrored2"])
@pytest.mark.long
def test_iterations_count_batches_where_the_length_is_unknown(home):
    with scope(home and mirrored(home)):
        model = unisono.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        model.compile("adam", "mse", jit_compile=False)
    spec = tf.TensorSpec((None, 4), tf.float64), tf.TensorSpec((None, 3), tf.float64)
    data = tf.data.Dataset.from_generator(lambda: ((X[a:b], Y[a:b]) for a, b in CUTS), output_signature=spec)
    model.fit(data, epochs=2, verbose=0)
    assert int(model.optimizer.iterations.numpy()) == 2 * len(
        CUTS
    )  # plain Keras counts the end of the data, too
