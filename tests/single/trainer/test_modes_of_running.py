"""Every strategy with every mode of `fit` matches the plain graph, or raises a one-sentence error."""

import helpers
import keras
import numpy as np
import pytest

import unisono

X = np.random.default_rng(0).normal(size=(15, 3)).astype("float32")  # a partial last batch is compiled, too
GRAPH = {"jit_compile": False}
WAYS = [  # arguments of `compile`
    {"jit_compile": True},
    {"jit_compile": True, "steps_per_execution": 3},
    {"jit_compile": False, "steps_per_execution": 2},
    {"jit_compile": False, "run_eagerly": True, "steps_per_execution": 3},
    {"jit_compile": "auto", "run_eagerly": True},
]


def make(strategy, **how):
    keras.utils.set_random_seed(1)
    with helpers.scope(strategy):
        model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(2, "tanh"), keras.layers.Dense(1)])
        model.compile("adam", "mse", **how)
    return model


def results(strategy, **how):
    model = make(strategy, **how)
    history = model.fit(X, X[:, :1], batch_size=5, verbose=0, shuffle=False).history
    loss = model.evaluate(X, X[:, :1], batch_size=5, verbose=0)
    return [history["loss"], loss, model.predict(X, batch_size=5, verbose=0)]


@pytest.fixture(scope="module")
def plain():
    return results(None, **GRAPH)


@pytest.mark.long
@pytest.mark.parametrize("name", ["none", "one", "mirrored2", "central1", "central2"])
def test_each_way_of_running_gives_the_numbers_of_the_plain_graph(name, plain):
    strategy = helpers.strategy(name)
    for how in WAYS:
        if name == "central2" and how["jit_compile"] is True:
            model = make(strategy, **how)
            for method in (model.fit, model.train_on_batch):
                with pytest.raises(
                    ValueError, match=r"`jit_compile=True` does not work under CentralStorageStrategy"
                ):
                    method(X, X[:, :1])
            assert int(model.optimizer.iterations) == 0
            assert model.evaluate(X, X[:, :1], verbose=0) > 0
        else:
            helpers.assert_close(results(strategy, **how), plain, helpers.FLOAT32, str(how))
