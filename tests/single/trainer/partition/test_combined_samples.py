"""Custom steps that combine arrays sample by sample, or do not: sizes that the step needs to be equal are checked."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_close, mirrored, train

import unisono

_R = np.random.default_rng(0)
X, T, P = _R.normal(size=(10, 4)), _R.normal(size=(10, 3)), _R.normal(size=(1, 3))


class Distances(unisono.Model):
    """Moves the outputs towards targets, of which there may be one for all samples."""

    def __init__(self):
        super().__init__()
        self.net = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])

    def train_step(self, data):
        x, targets = data
        with tf.GradientTape() as tape:
            padded = tf.pad(self.net(x), [[0, tf.maximum(8 - tf.shape(x)[0], 0)], [0, 0]])
            loss = tf.reduce_mean((self.net(x) - targets) ** 2) + tf.reduce_mean(padded**2)
        variables = self.net.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}


def _fitted(strategy, batches):
    model, history = train(Distances, batches, strategy, {"epochs": 1}, loss=None, jit_compile=False)
    return [history["loss"], *(w.numpy() for w in model.net.weights)]


def _batches(*arrays, size):
    return tf.data.Dataset.from_tensor_slices(arrays).batch(size)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("size", [7, 3])
@pytest.mark.long
def test_padded_batches_of_any_size_match_one_device(size):
    batches = _batches(X, T, size=size)
    assert_close(_fitted(mirrored(3), batches), _fitted(None, batches), 1e-12, "padded")


@pytest.mark.usefixtures("float64")
@pytest.mark.falls_back
def test_one_sample_for_all_others_runs_on_one_replica_with_a_warning():
    one = tf.data.Dataset.from_tensors(P).repeat(2)
    batches = tf.data.Dataset.zip(tf.data.Dataset.from_tensor_slices(X).batch(5), one)
    expected = _fitted(None, batches)
    with pytest.warns(UserWarning, match="combines `x` and `y`, which have different numbers of samples"):
        found = _fitted(mirrored(2), batches)
    assert_close(found, expected, 1e-12, "one target")


@pytest.mark.usefixtures("float64")
@pytest.mark.long
def test_other_numbers_of_samples_that_are_only_known_at_run_time_are_an_error():
    open_spec = tf.TensorSpec([None, 3], tf.float64)
    one = tf.data.Dataset.from_generator(lambda: iter([P, P]), output_signature=open_spec)
    batches = tf.data.Dataset.zip(tf.data.Dataset.from_tensor_slices(X).batch(5), one)
    with pytest.raises(tf.errors.InvalidArgumentError, match="`y` must have as many samples as `x`"):
        _fitted(mirrored(2), batches)
