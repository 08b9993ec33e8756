"""A model and inputs with random draws, counters and epoch state, to show that measuring them has no side effects."""

import random

import helpers
import keras
import numpy as np
import tensorflow as tf

import unisono

ROWS = 11
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")
Y = X[:, :1] * 2


class Noise(keras.layers.Layer):
    """Draws and counts even when it is not training."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1)
        self.count = tf.Variable(0, trainable=False)
        self.generator = tf.random.Generator.from_seed(3)

    def call(self, x):
        self.count.assign_add(1)
        return x + 0.1 * keras.random.normal(keras.ops.shape(x), seed=self.seeds)


class Shuffling(keras.utils.PyDataset):
    """Draws, and changes its data after every epoch."""

    def __init__(self):
        super().__init__()
        self.rng, self.order = np.random.default_rng(2), np.arange(ROWS)

    def __len__(self):
        return 3

    def __getitem__(self, number):
        rows = self.order[4 * number : 4 * number + 4]
        return X[rows] + self.rng.normal() + np.random.normal(), Y[rows]

    def on_epoch_end(self):
        self.rng.shuffle(self.order)


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(11).batch(4)


def make_model(strategy=None, optimizer=None):
    """Builds the model as a script would that sets its seeds."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(4)
    with helpers.scope(strategy):
        layers = [
            keras.layers.Dense(2, "tanh"),
            keras.layers.BatchNormalization(),
            Noise(),
            keras.layers.Dense(1),
        ]
        model = unisono.Sequential([keras.Input((3,)), *layers])
        optimizer = optimizer or unisono.optimizers.Adam(0.05)
        model.compile(optimizer, "mse", metrics=["mae"], run_eagerly=strategy is None)
    return model


def drawn():
    """The next number of every generator."""
    return random.random(), np.random.normal(), float(keras.random.normal([])), float(tf.random.normal([]))
