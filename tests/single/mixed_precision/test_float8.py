"""Keras' float8 layers on replicas have single-device scales, and weights that agree within bfloat16 rounding."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from gpu_copies import equal_copies
from helpers import mirrored

import unisono

RANDOM = np.random.default_rng(2)
X = RANDOM.normal(size=(20, 16)).astype("float32")
Y = RANDOM.normal(size=(20, 1)).astype("float32")
SCALES = 1e-2  # relative to the largest: weights differ by bfloat16 rounding after the first step
OF_BFLOAT16 = 2**-7  # Keras casts the bias, which rounds each replica's share of its gradient


def trained(strategy, policy, model_class=unisono.Model, optimizer=unisono.optimizers.SGD):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        inputs = keras.Input((16,))
        hidden = keras.layers.Dense(32, "relu", dtype=policy, name="hidden")
        model = model_class(inputs, keras.layers.Dense(1, name="last")(hidden(inputs)))
        if policy is None:
            hidden.quantize("float8")
        model.compile(optimizer(0.01), "mse", jit_compile=False)
    before = [v.numpy() for v in model.variables]
    model.fit(X, Y, batch_size=7, epochs=2, shuffle=False, verbose=0)  # 7, 7 and 6 samples
    return model, before


def assert_same(model, expected, before):
    for ours, theirs, old in zip(model.variables, expected.variables, before, strict=True):
        theirs = theirs.numpy()
        scale = SCALES if "scale" in ours.path or "amax" in ours.path else OF_BFLOAT16
        largest = np.abs(theirs).max() if scale == SCALES else np.abs(theirs - old).max()
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=0, atol=scale * largest, err_msg=ours.path)


@pytest.mark.short("float8_from_float32")
@pytest.mark.parametrize("policy", [None, "float8_from_float32"])
def test_float8_layers_on_two_replicas_are_those_of_one_device(policy):
    (one, before), (two, _) = (trained(s, policy) for s in (tf.distribute.get_strategy(), mirrored(2)))
    equal_copies(two)
    assert sum("amax_history" in v.path for v in two.variables) == 3, "inputs, kernel and gradients"
    assert_same(two, one, before)


@pytest.mark.long
def test_float8_layers_on_one_device_are_those_of_keras():
    one, before = trained(tf.distribute.get_strategy(), None)
    theirs, _ = trained(tf.distribute.get_strategy(), None, keras.Model, keras.optimizers.SGD)
    assert_same(one, theirs, before)
