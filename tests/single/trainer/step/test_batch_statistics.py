"""Batch statistics: synchronized ones match a single device; others are the same on all replicas."""

from __future__ import annotations

from typing import Any

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from unisono.callbacks.monitoring.fit_lines import _batch_norms

MOMENTUM = 0.9


def rows(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(count).normal(2.0, 3.0, size=(count, *shape)).astype("float32")


def normalized_model(**kwargs: Any) -> Any:
    inputs = keras.Input((3,))
    x = keras.layers.Dense(4)(inputs)
    x = keras.layers.BatchNormalization(momentum=MOMENTUM, **kwargs)(x)
    return unisono.Model(inputs, keras.layers.Dense(2)(keras.layers.Activation("tanh")(x)))


def train(strategy: Any, batch: int, **kwargs: Any) -> dict[str, Any]:
    keras.utils.set_random_seed(2)
    x, y = rows(10, 3), rows(10, 2)
    with helpers.scope(strategy):
        model = normalized_model(**kwargs)
        model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"], run_eagerly=strategy is None)
    history = model.fit(x, y, batch_size=batch, epochs=2, shuffle=False, verbose=0)
    if strategy is not None:
        assert helpers.copies_are_equal(model.weights, strategy)
    return {
        "history": history.history,
        "weights": model.get_weights(),
        "evaluate": model.evaluate(x, y, batch_size=batch, verbose=0),
        "predict": model.predict(x, batch_size=batch, verbose=0),
    }


# 10 samples in batches of 4: uneven on 3 replicas, and one replica has no samples in the last batch.
@pytest.mark.parametrize("name, batch", [("mirrored3", 4), ("central2", 5)])
@pytest.mark.long
def test_synchronized_equals_one_device(name, batch):
    actual = train(helpers.strategy(name), batch, synchronized=True)
    helpers.assert_close(actual, train(None, batch), helpers.FLOAT32)


def only_normalization(strategy: Any) -> Any:
    with helpers.scope(strategy):
        model = unisono.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(momentum=MOMENTUM)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    return model


@pytest.mark.long
def test_not_synchronized_keeps_the_mean_weighted_with_samples():
    strategy = helpers.mirrored(2)
    model = only_normalization(strategy)
    x = rows(5, 3)
    model.fit(x, x, batch_size=5, epochs=1, shuffle=False, verbose=0)
    parts = [x[:2], x[2:]]  # 5 samples on 2 replicas
    mean = sum(len(part) * part.mean(0) for part in parts) / 5
    variance = sum(len(part) * part.var(0) for part in parts) / 5
    layer = model.layers[-1]
    expected = [(1 - MOMENTUM) * mean, MOMENTUM + (1 - MOMENTUM) * variance]
    helpers.assert_close([layer.moving_mean, layer.moving_variance], expected, helpers.FLOAT32)
    assert helpers.copies_are_equal(layer.weights, strategy)


@pytest.mark.long
def test_replica_without_samples_adds_nothing():
    strategy = helpers.mirrored(3)
    model = only_normalization(strategy)
    x = rows(1, 3)
    model.fit(x, x, batch_size=4, epochs=1, verbose=0)
    layer = model.layers[-1]
    helpers.assert_close(layer.moving_mean, (1 - MOMENTUM) * x[0], helpers.FLOAT32)
    helpers.assert_close(layer.moving_variance, np.full(3, MOMENTUM), helpers.FLOAT32)


@pytest.mark.long
def test_identical_samples_are_predicted_identically():
    model = only_normalization(helpers.mirrored(3))
    x = rows(7, 3)
    model.fit(x, x, batch_size=7, epochs=3, verbose=0)
    same = np.repeat(x[:1], 6, axis=0)
    outputs = model.predict(same, batch_size=6, verbose=0)
    assert (outputs == outputs[0]).all()
    np.testing.assert_allclose(outputs, model(same, training=False), rtol=1e-5)


@pytest.mark.long
def test_gradient_of_normalization_is_that_of_each_replicas_own_samples():
    """The expected gradient is the sum over three shards, each normalized separately."""
    layers = lambda: [  # noqa: E731
        keras.Input((6,)),
        keras.layers.Dense(8, "relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(3),
        keras.layers.BatchNormalization(),
    ]
    x = np.random.default_rng(0).normal(size=(8, 6)).astype("float32")
    y = x[:, :3] * 2
    keras.utils.set_random_seed(3)
    with helpers.mirrored(3).scope():
        model = unisono.Sequential(layers())
        model.compile(unisono.optimizers.SGD(0.1), "mse")
    reference = keras.Sequential(layers())
    reference.set_weights(model.get_weights())
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    total = None
    for first, last in ((0, 2), (2, 5), (5, 8)):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((reference(x[first:last], training=True) - y[first:last]) ** 2) / 24
        part = tape.gradient(loss, reference.trainable_variables)
        total = part if total is None else [a + b for a, b in zip(total, part)]
    assert total is not None
    expected = [v - 0.1 * g for v, g in zip(reference.trainable_variables, total)]
    helpers.assert_close([np.array(v) for v in model.trainable_variables], expected, helpers.FLOAT32)


class Subclassed(unisono.Model):
    """Layers in a list, a dict and a layer, one of which is made in `build`."""

    def __init__(self) -> None:
        super().__init__()
        make = keras.layers.BatchNormalization
        self.listed, self.named = [make(name="listed")], {"a": make(name="named")}
        self.wrapped = keras.layers.TimeDistributed(make(name="wrapped"))
        self.dense = keras.layers.Dense(2)

    def build(self, shape: Any) -> None:
        self.late = keras.layers.BatchNormalization(name="late")
        self.late.build(shape)
        super().build(shape)

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.named["a"](self.listed[0](x, training=training), training=training)
        x = self.wrapped(x[:, None], training=training)[:, 0]
        return self.dense(self.late(x, training=training))


def nested() -> Any:
    """A shared layer, a frozen one, and one in a model in the model."""
    make, inputs = keras.layers.BatchNormalization, keras.Input((3,))
    inner = keras.Sequential([keras.Input((3,)), make(name="inner"), keras.layers.Dense(3, "tanh")])
    shared, frozen = make(name="shared"), make(name="frozen", trainable=False)
    x = shared(keras.layers.Dense(3)(frozen(shared(inner(inputs)))))
    return unisono.Model(inputs, keras.layers.Dense(2)(x))


def test_synchronize_batch_norm_makes_any_model_equal_to_one_device(tmp_path, capsys):
    x, y = rows(8, 3), rows(8, 2)
    made = {
        "nested": (nested, ["inner", "shared", "frozen"]),
        "subclassed": (Subclassed, ["listed", "named", "wrapped", "late"]),
    }
    for name, (make, names) in made.items():
        found = {}
        for strategy in (None, helpers.mirrored(3)):
            keras.utils.set_random_seed(2)
            with helpers.scope(strategy):
                model = make()
                model.build((None, 3))
                model.compile(unisono.optimizers.SGD(0.05), "mse", run_eagerly=strategy is None)
            fit = {"batch_size": 4, "shuffle": False, "verbose": 2 * (strategy is not None)}
            if strategy is not None and name == "nested":  # what was traced before is traced again
                weights = model.get_weights()
                model.fit(x, y, **fit)
                model.set_weights(weights)
                said = " ".join(capsys.readouterr().out.split())
                assert said.count("2 BatchNormalization layers normalize each replica's samples apart") == 1
            assert sorted(unisono.synchronize_batch_norm(model)) == sorted(names)
            kept = model.train_function
            found[strategy] = model.fit(x, y, **fit).history, model.get_weights()
            assert sorted(unisono.synchronize_batch_norm(model)) == sorted(names)
            assert model.train_function is not kept, "the second call changes nothing"
        helpers.assert_close(*found.values(), 1e-4, name)  # a bias before a normalization is nearly 0
        assert "BatchNormalization" not in capsys.readouterr().out
    model = nested()
    unisono.synchronize_batch_norm(model)
    model.save(tmp_path / "m.keras")
    assert keras.models.load_model(tmp_path / "m.keras").get_layer("shared").synchronized


@pytest.mark.parametrize(
    "micro_batches, said", [(4, ["1 BatchNormalization layer normalizes each micro-batch apart"]), (1, [])]
)
def test_first_line_says_that_micro_batches_are_normalized_apart(micro_batches, said):
    with unisono.distribute.Pipeline(["CPU:0", "CPU:1"], micro_batches=micro_batches).scope():
        model = normalized_model()
        model.compile("sgd", "mse")
    assert _batch_norms(model) == said


class _Calls(keras.layers.Layer):
    """Calls Python, so that its step runs on one replica, which normalizes the whole batch."""

    def call(self, x):
        return x + tf.stop_gradient(
            tf.ensure_shape(tf.numpy_function(np.zeros_like, [x], tf.float32), x.shape)
        )


@pytest.mark.falls_back
def test_lines_of_fit_do_not_say_that_a_whole_batch_is_normalized_apart(capsys):
    with helpers.mirrored(2).scope():
        model = normalized_model()
        model = unisono.Sequential([keras.Input((3,)), _Calls(), *model.layers[1:]])
        model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="runs on one replica"):
        model.fit(rows(4, 3), rows(4, *model.output_shape[1:]), verbose=2)
    assert "BatchNormalization" not in capsys.readouterr().out
