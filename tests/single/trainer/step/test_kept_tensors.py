"""Tensors that a layer stores for later in the step belong to the replica, and losses that layers add are summed."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import unisono

ROWS = 10


def own_error(y_true, y_pred):
    return ops.mean(ops.square(y_true - y_pred), axis=-1)


class KeepsLatents(unisono.Model):
    """A VAE that stores encoder outputs, directly and in a list, for a custom loss term."""

    def __init__(self):
        super().__init__()
        self.encoder, self.mean, self.log_var = (keras.layers.Dense(n, "tanh") for n in (6, 2, 2))
        self.decoder = keras.layers.Dense(3)

    def call(self, x, training=False):
        hidden = self.encoder(x)
        self.z_mean, self.latents = self.mean(hidden), [self.log_var(hidden)]
        return self.decoder(self.z_mean + 0.1 * self.latents[0])

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        reconstruction = super().compute_loss(x, y, y_pred, sample_weight, training)
        each = 1 + self.latents[0] - ops.square(self.z_mean) - ops.exp(self.latents[0])
        return reconstruction - 0.5 * ops.mean(ops.sum(each, axis=-1))


class ComparesLatents(KeepsLatents):
    """An InfoVAE: its loss compares the stored values across samples."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        reconstruction = super().compute_loss(x, y, y_pred, sample_weight, training)
        distances = ops.sum(ops.square(self.z_mean[:, None] - self.z_mean[None]), axis=-1)
        return reconstruction + ops.mean(ops.exp(-distances))


class MatchesFeatures(unisono.Model):
    """A GAN whose generator is trained on features that were stored before an update of the rest."""

    def __init__(self):
        super().__init__()
        self.generator, self.features = (
            keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)]) for _ in range(2)
        )
        self.other = keras.optimizers.SGD(0.05)

    def call(self, x):
        self.last = self.features(x)
        return self.last

    def train_step(self, data):
        latent, real = data

        def of_both():
            made = tf.reduce_mean(tf.square(self(self.generator(latent))))
            return made + tf.reduce_mean(tf.square(1 - self(real)))

        def of_features():
            features = self.features(self.generator(latent))
            return tf.reduce_mean(tf.square(tf.stop_gradient(self.last) - features))

        loss = helpers.descend(of_both, self.optimizer, self.features.trainable_variables)
        own = helpers.descend(of_features, self.other, self.generator.trainable_variables)
        return {"loss": loss, "own": own}


class AddsALossForEachRow(keras.layers.Layer):
    """As the CTC layer of Keras' example, whose losses have the shape [batch, 1]: Keras adds their sum."""

    def call(self, targets, outputs):
        self.add_loss(ops.mean(ops.square(targets - outputs), axis=-1, keepdims=True))
        return outputs


def with_an_endpoint():
    inputs, targets = keras.Input((3,), name="image"), keras.Input((3,), name="label")
    outputs = keras.layers.Dense(3)(keras.layers.Dense(6, activation="tanh")(inputs))
    return unisono.Model([inputs, targets], AddsALossForEachRow()(targets, outputs))


def compare(make, strategy, **options):
    x, y = np.random.default_rng(0).normal(size=(2, ROWS, 3)).astype("float32")
    loss = own_error if make in (KeepsLatents, ComparesLatents) else None
    data, sgd = ([x, y],) if make is with_an_endpoint else (x, y), lambda: keras.optimizers.SGD(0.02)
    helpers.compare(make, data, [strategy], fit={"batch_size": 4}, optimizer=sgd, loss=loss, **options)


@pytest.mark.long
@pytest.mark.parametrize("make", [KeepsLatents, ComparesLatents, MatchesFeatures, with_an_endpoint])
@pytest.mark.parametrize("replicas", [2, 3])
def test_numbers_are_those_of_one_device(make, replicas):
    compare(make, f"mirrored{replicas}")


@pytest.mark.long
def test_eager_replicas_keep_their_own_too():
    compare(KeepsLatents, "mirrored2", run_eagerly=True)
