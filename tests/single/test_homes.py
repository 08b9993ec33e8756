"""Optimizers and metrics keep their variables from fit to fit, wherever these live."""

import helpers
import keras
import numpy as np
import pytest

import unisono

X = np.random.default_rng(0).normal(size=(10, 3)).astype("float32")


@pytest.mark.parametrize("name", ["mirrored2", "central2"])
def test_second_fit_goes_on_with_the_variables_of_the_first(name):
    histories = []
    for kind in ("none", name):
        keras.utils.set_random_seed(2)
        metric = keras.metrics.MeanAbsoluteError()  # made outside of the scope, as the optimizer is
        optimizer = unisono.optimizers.Adam(0.1)
        with helpers.scope(helpers.strategy(kind)):
            model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
            model.compile(optimizer, "mse", metrics=[metric])
        history = model.fit(X, X[:, :1], batch_size=4, shuffle=False, verbose=0).history
        before = [id(variable.value) for variable in [*optimizer.variables, *metric.variables]]
        again = model.fit(X, X[:, :1], batch_size=4, shuffle=False, verbose=0).history
        assert [id(variable.value) for variable in [*optimizer.variables, *metric.variables]] == before
        assert int(optimizer.iterations.numpy()) == 6
        histories.append([history, again, model.get_weights()])
    helpers.assert_close(histories[1], histories[0], helpers.FLOAT32)
