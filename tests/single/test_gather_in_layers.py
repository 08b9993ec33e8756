"""`gather` and `global_mean` in layers: models can be made of them under a strategy, and have the numbers of one device."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono

NUMBERS = np.random.default_rng(0)
X, Y = NUMBERS.normal(size=(11, 3)), NUMBERS.normal(size=(11, 2))  # batches of 4, 4 and 3 rows


class Compares(keras.layers.Dense):
    """Adds a loss of all pairs of rows, and a mean over the rows."""

    def call(self, x):
        own = super().call(x)
        rows = unisono.distribute.gather(own)
        self.add_loss(tf.reduce_mean(tf.matmul(rows, rows, transpose_b=True) ** 2))
        self.add_loss(unisono.distribute.global_mean((own - 1) ** 2))
        return own


def functional():
    inputs = keras.Input((3,))
    return unisono.Model(inputs, keras.layers.Dense(2)(Compares(4)(inputs)))


def deferred():
    return unisono.Sequential([Compares(4), keras.layers.Dense(2)])


@pytest.mark.parametrize("make", [functional, deferred])
def test_layer_that_gathers_trains_as_on_one_device(make):
    keras.config.set_floatx("float64")
    shown = []
    for on in (None, helpers.strategy("mirrored3")):
        keras.utils.set_random_seed(1)
        with helpers.scope(on):
            model = make()
            model.compile("sgd", "mse", jit_compile=False)
        history = model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
        shown.append([*model.get_weights(), *history.values(), model.predict(X, batch_size=4, verbose=0)])
    helpers.assert_close(shown[1], shown[0], helpers.FLOAT64)


def test_gather_outside_of_a_replica_is_still_an_error():
    with (
        helpers.strategy("mirrored2").scope(),
        pytest.raises(RuntimeError, match=r"outside of `strategy\.run`"),
    ):
        unisono.distribute.gather(tf.ones([2, 3]))
