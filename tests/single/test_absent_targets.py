"""Outputs without a target: a list of targets may contain `None`, as in Keras."""

import helpers
import keras
import numpy as np

import unisono

X = np.random.default_rng(0).normal(size=(19, 3)).astype("float32")
Y = X[:, :1] * X[:, 1:2]


def trained(replicas, absent, jit_compile):
    keras.utils.set_random_seed(1)
    with helpers.scope(helpers.strategy(replicas)):
        inputs = keras.Input((3,))
        h = keras.layers.Dense(4, "tanh")(inputs)
        outputs = [keras.layers.Dense(1)(h), keras.layers.Dense(2, trainable=False)(h)]
        model = unisono.Model(inputs, outputs if absent else outputs[0])
        model.compile("sgd", ["mse", None] if absent else "mse", jit_compile=jit_compile)
    targets = [Y, None] if absent else Y
    history = model.fit(X, targets, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    evaluated = model.evaluate(X, targets, batch_size=8, verbose=0)
    on_batch = model.train_on_batch(X, targets)
    return [history, evaluated, on_batch, *(np.array(v) for v in model.layers[1].weights)]


def test_output_without_a_target_changes_nothing():
    expected = trained("none", absent=False, jit_compile=False)
    for replicas, jit_compile in (("none", True), ("mirrored2", False)):
        helpers.assert_close(trained(replicas, True, jit_compile), expected, helpers.FLOAT32, replicas)
