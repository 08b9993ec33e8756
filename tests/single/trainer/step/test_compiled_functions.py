"""A function in a model keeps its own compile options, and a step that contains it matches a single device."""

import functools
import os
import subprocess
import sys

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf
from children import HELPERS

import unisono

layers = keras.layers
NUMBERS = np.random.default_rng(0)
X, Y = NUMBERS.normal(size=(10, 3, 3, 3, 4)), NUMBERS.normal(size=(10, 2))

# One of each family of `keras.applications`, at about the smallest image size that it accepts.
SMALL = ["ConvNeXtTiny", "DenseNet121", "EfficientNetB0", "EfficientNetV2B0", "MobileNet", "MobileNetV2"]
SMALL += ["MobileNetV3Small", "NASNetMobile", "ResNet50", "ResNet50V2", "VGG16"]
APPLICATIONS = {"InceptionResNetV2": 75, "InceptionV3": 75, "Xception": 71, **dict.fromkeys(SMALL, 32)}


class Grouped(layers.Layer):
    """A grouped convolution, which only XLA supports on CPUs."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(2, 2, 2, 2, 4))

    @tf.function(jit_compile=True)
    def convolve(self, x):
        return tf.nn.conv3d(x, self.kernel, [1] * 5, "SAME")

    def call(self, x):
        return self.convolve(x)


class Counting(layers.Layer):
    """Updates state in a compiled function."""

    def build(self, shape):
        self.calls = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

    @tf.function(jit_compile=True)
    def count(self, x):
        self.calls.assign_add(1)
        return x * 2.0

    def call(self, x):
        return self.count(x)


class Layers:
    """Keras' own compiled function, a custom one, and one that updates state."""

    def __init__(self):
        super().__init__()
        convolution = layers.Conv3D(4, 2, groups=2, activation="relu")
        self.all = [convolution, Grouped(), Counting(), layers.Flatten(), layers.Dense(2)]

    def call(self, x):
        for layer in self.all:
            x = layer(x)
        return x


class Gradients(Layers):
    """A step that computes its gradients in a compiled function."""

    @tf.function(jit_compile=True)
    def gradients(self, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(y - self.all[-1](x)))
        return tape.gradient(loss, self.all[-1].trainable_variables)

    def train_step(self, data):
        gradients = self.gradients(tf.reshape(data[0], [-1, 108])[:, :32], data[1])
        self.optimizer.apply_gradients(zip(gradients, self.all[-1].trainable_variables))
        return {"last": tf.zeros([])}


class WholeStep(Gradients):
    """A step compiled as a whole: not possible where the replicas communicate."""

    train_step = tf.function(Gradients.train_step, jit_compile=True)


def numbers(kind, base, on=None, **how):
    keras.config.set_floatx("float64")
    keras.utils.set_random_seed(1)
    with helpers.scope(on):
        model = type(kind.__name__, (kind, base), {})()
        if base is keras.Model:  # whose functions keep their first trace
            model(X[:1])
            model.all[2].calls.assign(0)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", **how)
    model.fit(X, Y, batch_size=5, shuffle=False, verbose=0)
    loss = model.evaluate(X, Y, batch_size=5, verbose=0)
    return [*model.get_weights(), loss, model.predict(X, batch_size=5, verbose=0)]


@functools.cache
def of_keras(kind):
    return numbers(kind, keras.Model, jit_compile=False)


GRAPH = {"jit_compile": False}
WAYS = {
    "graph": (Layers, None, GRAPH),
    "eager": (Layers, None, {"run_eagerly": True}),
    "XLA": (Layers, None, {"jit_compile": True}),
    "mirrored": (Layers, "mirrored3", GRAPH),
    "central": (Layers, "central2", GRAPH),
    "sharded": (Layers, "sharded", GRAPH),
    "gradients": (Gradients, "central2", GRAPH),
    "gradients of sharded weights": (Gradients, "sharded", GRAPH),
    "a whole step": (WholeStep, "mirrored2", GRAPH),
}


@pytest.mark.short("XLA")
@pytest.mark.parametrize("way", WAYS)
def test_compiled_functions_have_the_numbers_of_keras(way):
    kind, on, how = WAYS[way]
    strategy = None
    if on is not None:
        sharded = on == "sharded"
        strategy = helpers.strategy("mirrored2" if sharded else on)
        strategy = unisono.distribute.sharded(strategy, "weights") if sharded else strategy
    found = numbers(kind, unisono.Model, strategy, **how)
    helpers.assert_close(found, of_keras(kind), helpers.FLOAT64)


@pytest.mark.long
@pytest.mark.process
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("onednn", ["0", "1"])
@pytest.mark.parametrize("name", APPLICATIONS)
def test_applications_take_a_step_and_predict_as_in_keras(name, onednn):
    program = HELPERS / "applications.py"
    command = [sys.executable, str(program), name, str(APPLICATIONS[name])]
    environment = {**os.environ, "TF_ENABLE_ONEDNN_OPTS": onednn}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
