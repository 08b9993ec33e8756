"""Each replica's statistics are those of the calls of a `BatchNormalization`, whatever the names of other code."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono

X = np.random.default_rng(0).normal(size=(11, 4, 3)).astype("float32")
NAME = "normalization"


class OfTheBatch(keras.layers.Layer):
    """Compares samples; the tape differentiates it."""

    def __init__(self, scopes, **arguments):
        super().__init__(**arguments)
        self.scopes = scopes

    def call(self, x):
        for scope in self.scopes:
            with tf.name_scope(scope):
                x = x - 0.5 * tf.reduce_mean(x, 0, keepdims=True)
        return tf.nn.tanh(x / (1.0 + tf.reduce_max(tf.reduce_sum(x * x, 0))))


class CallsDirectly(keras.layers.Layer):
    """Calls `call` of a layer, in whose scope it then compares samples itself."""

    def __init__(self, axis):
        super().__init__()
        self.normalization = keras.layers.BatchNormalization(axis=axis, name=NAME)

    def build(self, shape):
        self.normalization.build(shape)

    def call(self, x, training=None):
        y = self.normalization.call(x, training=False)
        return y - tf.reduce_mean(tf.tanh(y), 0, keepdims=True)


class InStep(unisono.Sequential):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            z = self(x, training=True)
            with tf.name_scope(NAME):
                loss = tf.reduce_mean(tf.square(y - z)) / (1.0 + tf.math.reduce_variance(z))
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"loss": loss}


def frozen():
    layer = keras.layers.BatchNormalization(name=NAME)
    layer.trainable = False  # its statistics are those that it has learned
    return layer


MODELS = {
    "name": lambda: (unisono.Sequential, [frozen(), keras.Sequential([OfTheBatch(["a"], name=NAME)])]),
    "scope": lambda: (unisono.Sequential, [frozen(), OfTheBatch([NAME, f"{NAME}_1", "gradient_tape"])]),
    "gradient": lambda: (unisono.Sequential, [frozen(), OfTheBatch([f"gradient_tape/s/{NAME}/call/"])]),
    "step": lambda: (InStep, [frozen(), keras.layers.Dense(3)]),
    "direct": lambda: (unisono.Sequential, [keras.layers.Dense(3), CallsDirectly(-1)]),
}


def trained(kind, name):
    keras.utils.set_random_seed(1)
    with helpers.scope(helpers.strategy(name)):
        cls, layers = MODELS[kind]()
        model = cls([keras.Input((4, 3)), keras.layers.Dense(3), *layers, keras.layers.Flatten()], name="s")
        if kind != "step":
            model.add(keras.layers.Dense(1))
        model.compile(keras.optimizers.SGD(0.3), "mse", jit_compile=False)
    target = X[:, 0, :1]
    history = model.fit(X, target, batch_size=5, epochs=2, shuffle=False, verbose=0).history["loss"]
    return history, model.get_weights()


@pytest.mark.long
@pytest.mark.parametrize("name", ["mirrored2", "mirrored3", "mirrored4"])
@pytest.mark.parametrize("kind", MODELS)
def test_code_with_the_name_of_a_normalization_sees_the_whole_batch(kind, name):
    helpers.assert_close(trained(kind, name), trained(kind, "none"), helpers.FLOAT32)


def parts_of_one_device(layer):
    """The gradient and the moving mean of a step in which each half of a batch has its own statistics."""
    model = keras.Sequential([keras.Input((4, 3)), layer])
    with tf.GradientTape() as tape:
        outputs = [model(part, training=True) for part in (X[:2], X[2:4])]
        loss = tf.reduce_mean(tf.square(tf.concat(outputs, 0) - 1.0) * X[:4])
    return tape.gradient(loss, model.trainable_variables)


class OfSubclass(keras.layers.BatchNormalization):
    def call(self, inputs, training=None, mask=None):
        return super().call(tf.tanh(inputs), training=training, mask=mask)


@pytest.mark.parametrize("make", [keras.layers.BatchNormalization, OfSubclass], ids=["own", "subclass"])
@pytest.mark.parametrize("wrap", [None, keras.layers.TimeDistributed], ids=["alone", "distributed in time"])
@pytest.mark.long
def test_each_replica_normalizes_its_own_samples(make, wrap):
    def layer():
        return make() if wrap is None else wrap(make())

    before = parts_of_one_device(layer())
    with helpers.mirrored(2).scope():
        model = unisono.Sequential([keras.Input((4, 3)), layer()])
        model.compile(keras.optimizers.SGD(1.0), lambda y, z: tf.square(z - 1.0) * y, jit_compile=False)
    weights = [v.numpy() for v in model.trainable_variables]
    model.fit(X[:4], X[:4], batch_size=4, shuffle=False, verbose=0)
    moved = [old - v.numpy() for old, v in zip(weights, model.trainable_variables)]
    helpers.assert_close(moved, [np.array(g) for g in before], helpers.FLOAT32)
