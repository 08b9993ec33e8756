"""Random numbers: different masks on each replica, single-device masks on the first one, all derived from the seed."""

from __future__ import annotations

import types
from typing import Any

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from unisono.trainer.run.fit_loop import Runner

FEATURES = 16


class Noise(keras.layers.Layer):
    """Draws from its own generator, or from Keras' global one."""

    def __init__(self, own_seed: bool) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(4) if own_seed else None

    def call(self, x):
        return x + keras.random.normal(tf.shape(x), seed=self.seeds)


class Always(keras.layers.Layer):
    """A layer that is in training mode in prediction too (Monte Carlo dropout)."""

    def __init__(self, layer: keras.layers.Layer) -> None:
        super().__init__()
        self.layer = layer

    def call(self, x):
        return self.layer(x, training=True)


def noisy_model(strategy: Any) -> Any:
    """Every kind of random layer, active in prediction as well."""
    keras.utils.set_random_seed(9)
    with helpers.scope(strategy):
        inputs = keras.Input((FEATURES,))
        outputs = {
            "dropout": Always(keras.layers.Dropout(0.5))(inputs),
            "gaussian": Always(keras.layers.GaussianNoise(1.0))(inputs),
            "gaussian_dropout": Always(keras.layers.GaussianDropout(0.5))(inputs),
            "own": Noise(own_seed=True)(inputs),
            "global": Noise(own_seed=False)(inputs),
        }
        return unisono.Model(inputs, outputs)


ONES = np.ones((2, FEATURES), "float32")
TWICE = np.ones((4, FEATURES), "float32")


@pytest.mark.parametrize("name", ["mirrored2", "central2"])
def test_masks_differ_between_replicas_and_the_first_is_that_of_one_device(name):
    alone = noisy_model(None).predict(ONES, verbose=0)
    together = noisy_model(helpers.strategy(name)).predict(TWICE, verbose=0)
    for kind, values in together.items():
        np.testing.assert_array_equal(values[:2], alone[kind], err_msg=kind)
        assert np.abs(values[:2] - values[2:]).max() > 0.1, f"{kind}: both replicas drew the same"


def test_masks_are_keras_own_on_one_device_and_new_in_every_batch():
    ours = noisy_model(None)
    x = np.ones((6, FEATURES), "float32")
    got = [ours.predict(x, batch_size=2, verbose=0) for _ in range(2)]
    theirs = noisy_model(None)
    plain = keras.Model(theirs.inputs, dict(theirs.output))
    expected = [plain.predict(x, batch_size=2, verbose=0) for _ in range(2)]
    for first, second in zip(got, expected):
        for kind, values in second.items():
            np.testing.assert_array_equal(first[kind], values, err_msg=kind)
    for kind, values in got[0].items():
        assert np.abs(values[:2] - values[2:4]).max() > 0.1, f"{kind}: two batches have the same mask"
        assert np.abs(values - got[1][kind]).max() > 0.1, f"{kind}: two predictions are the same"


def fitted_weights(strategy: Any, seed: int) -> list[np.ndarray]:
    keras.utils.set_random_seed(seed)
    with helpers.scope(strategy):
        noise = keras.layers.Dropout(0.5), Noise(own_seed=False)
        model = unisono.Sequential([keras.Input((FEATURES,)), *noise, keras.layers.Dense(1, "relu")])
        model.compile("sgd", "mse")
    x = np.random.default_rng(0).normal(size=(10, FEATURES)).astype("float32")
    model.layers[-1].set_weights([np.full((FEATURES, 1), 0.1), np.ones(1)])
    model.fit(x, x[:, :1], batch_size=5, epochs=2, verbose=0)
    if strategy is not None:
        assert helpers.copies_are_equal(model.variables, strategy)
    return model.get_weights()


@pytest.mark.parametrize("name", ["none", "mirrored3"])
@pytest.mark.long
def test_training_repeats_its_bits_from_the_seed(name):
    first, again, other = (fitted_weights(helpers.strategy(name), seed) for seed in (1, 1, 2))
    helpers.assert_equal(again, first)
    assert all(np.abs(a - c).max() > 0 for a, c in zip(first, other))


class Recorder:
    """Replaces the compiled steps, and records the samples of every batch."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self.alone, self.training, self.predicts, self.backend = True, True, False, "graph"
        self.recorders: dict[Any, Any] = {}
        self.model = types.SimpleNamespace(
            run_eagerly=True, jit_compile=False, _auto_jit=True, _runner=Runner()
        )

    def __call__(self, execution: Any) -> tuple[int, dict[str, Any]]:
        for chunk in execution.chunks:
            for i in range(chunk.steps):
                x = chunk.batch(i)[0]
                self.rows.append([int(row) for row in x[:, 0]])
        return execution.steps, {"loss": tf.constant(0.0)}

    def hooks(self) -> list[Any]:
        return []

    def compilations(self) -> int:
        return 1

    def use(self, backend: str, reason: str) -> None:
        """Keep the backend."""

    def device(self) -> str:
        """No device."""
        return ""


def order(strategy: Any, seed: int, **arguments: Any) -> list[list[int]]:
    """The samples of each of two epochs, in the order of training."""
    keras.utils.set_random_seed(seed)
    with helpers.scope(strategy):
        model = unisono.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.train_function = recorder = Recorder()
    x = np.arange(11.0)[:, None]
    model.fit(x, x, batch_size=4, epochs=2, verbose=0, **arguments)
    rows = [row for batch in recorder.rows for row in batch]
    return [rows[:11], rows[11:]]


class NoisyContrast(keras.losses.Loss):
    """Depends on the entire batch, and adds noise."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, y_true, y_pred):
        noisy = y_pred + keras.random.normal(tf.shape(y_pred), seed=self.seeds)
        return keras.ops.square(noisy - keras.ops.mean(noisy, axis=0) - y_true)[:, 0]


def test_loss_that_reads_the_whole_batch_draws_the_results_of_one_device():
    def weights(strategy: Any) -> list[np.ndarray]:
        keras.utils.set_random_seed(9)
        with helpers.scope(strategy):
            model = unisono.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile(unisono.optimizers.SGD(0.1), NoisyContrast(), run_eagerly=True)
        x = np.random.default_rng(0).normal(size=(6, 2)).astype("float32")
        model.fit(x, x[:, :1], batch_size=3, verbose=0)
        return model.get_weights()

    helpers.assert_close(weights(helpers.mirrored(2)), weights(None), helpers.FLOAT32)


def test_shuffling_is_a_new_permutation_in_every_epoch_the_same_on_all_replica_counts():
    first = order(None, 5)
    assert all(sorted(epoch) == list(range(11)) for epoch in first)
    assert first[0] != first[1] and first[0] != list(range(11))
    assert order(None, 5) == first
    assert order(helpers.mirrored(2), 5) == first
    assert order(helpers.mirrored(3), 5) == first
    assert order(None, 6) != first


def test_shuffle_can_be_switched_off():
    assert order(helpers.mirrored(2), 5, shuffle=False) == [list(range(11))] * 2


@pytest.mark.parametrize("shuffle", [True, False])
def test_layers_that_fit_builds_have_the_weights_of_keras(shuffle):
    """Attention creates its sublayers, and their seeds, when it is built."""

    def weights(base: Any) -> list[Any]:
        class Attending(base):
            def __init__(self) -> None:
                super().__init__()
                self.attention, self.last = keras.layers.MultiHeadAttention(1, 2), keras.layers.Dense(1)

            def call(self, x: Any) -> Any:
                return self.last(self.attention(x, x))

        keras.utils.set_random_seed(5)
        model = Attending()
        model.compile(keras.optimizers.SGD(0.0), "mse", run_eagerly=True)
        x = np.arange(24.0).reshape(4, 2, 3)
        model.fit(x, x[..., :1], batch_size=2, shuffle=shuffle, verbose=0)
        return model.get_weights()

    helpers.assert_equal(weights(unisono.Model), weights(keras.Model))
