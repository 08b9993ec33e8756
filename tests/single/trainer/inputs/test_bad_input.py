"""Inputs that cannot be trained on raise before the first step, with the argument and its value; no weight changes."""

from __future__ import annotations

from typing import Any

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono

X, Y = np.ones((6, 3), "float32"), np.ones((6, 2), "float32")


def small_model(strategy: Any = None, compiled: bool = True, **arguments: Any) -> Any:
    with helpers.scope(strategy):
        model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        if compiled:
            model.compile(**{"optimizer": "sgd", "loss": "mse", **arguments})
    return model


def dataset(*arrays: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(steps_per_execution=0), r"steps_per_execution.*0"),
        (dict(jit_compile="yes"), r"jit_compile.*'yes'"),
        (dict(optimizer="no such"), r"no such"),
        (dict(unknown=1), r"unknown"),
    ],
)
def test_compile_rejects_and_keeps_what_was_compiled(arguments, message):
    model = small_model(helpers.mirrored(2))
    before = model.optimizer
    with pytest.raises((ValueError, TypeError), match=message):
        model.compile(**{"optimizer": "sgd", "loss": "mse", **arguments})
    assert model.optimizer is before


@pytest.mark.parametrize("method", ["fit", "evaluate", "train_on_batch", "test_on_batch"])
def test_missing_compile_is_rejected(method):
    with pytest.raises(ValueError, match=r"compile\(\)"):
        getattr(small_model(compiled=False), method)(X, Y)


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_scope_mix_up_is_rejected(method):
    inside = small_model(helpers.mirrored(2))
    with helpers.mirrored(3).scope():
        with pytest.raises(ValueError, match=r"3 replica.*2 replica"):
            getattr(inside, method)(X)


def test_layer_of_another_scope_is_rejected():
    with helpers.mirrored(3).scope():
        layer = keras.layers.Dense(2)
        layer.build((None, 3))
    with helpers.mirrored(2).scope():
        model = unisono.Sequential([keras.Input((3,)), layer])
        with pytest.raises(ValueError, match=r"kernel.* belongs to MirroredStrategy with 3 replica"):
            model.compile("sgd", "mse")


def test_compiling_in_another_scope_is_rejected():
    model = small_model(helpers.mirrored(3))
    with helpers.mirrored(2).scope():
        with pytest.raises(ValueError, match=r"`compile\(\)`.*built under MirroredStrategy with 3 replica"):
            model.compile("sgd", "mse")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mask", "own loss", "synchronized"])
def test_compiling_what_needs_the_other_replicas_gives_the_single_device_result(kind):
    weights = {}
    for strategy in (tf.distribute.get_strategy(), helpers.mirrored(2)):
        keras.utils.set_random_seed(3)
        with helpers.scope(strategy):
            layers = {
                "mask": [keras.layers.Masking(), keras.layers.LSTM(2, return_sequences=True)],
                "own loss": [keras.layers.Dense(2)],
                "synchronized": [keras.layers.Dense(2), keras.layers.BatchNormalization(synchronized=True)],
            }[kind]
            model = unisono.Sequential([keras.Input((5, 3)), *layers])
            loss = (lambda y, p: tf.reduce_mean(tf.abs(y - p))) if kind == "own loss" else "mse"
            model.compile("sgd", loss, jit_compile=strategy.num_replicas_in_sync > 1)
        x = np.random.default_rng(1).normal(size=(5, 5, 3)).astype("float32")
        model.fit(x, x[..., :2], batch_size=5, verbose=0)
        weights[strategy.num_replicas_in_sync] = model.get_weights()
    helpers.assert_close(weights[2], weights[1], helpers.FLOAT32)


def test_unknown_strategy_is_rejected():
    with tf.compat.v1.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match=r"MirroredStrategyV1.*tf.distribute.MirroredStrategy"):
        model.compile("sgd", "mse")
        model.fit(X, Y, verbose=0)


@pytest.mark.long
def test_fit_outside_of_the_scope_works_and_parts_are_brought_back():
    strategy = helpers.mirrored(2)
    with strategy.scope():
        model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    metric, optimizer = keras.metrics.MeanAbsoluteError(), keras.optimizers.Adam(0.1)
    model.compile(optimizer, "mse", metrics=[metric])
    alone = small_model(optimizer=keras.optimizers.Adam(0.1), metrics=["mean_absolute_error"])
    alone.set_weights(model.get_weights())
    ours = model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    expected = alone.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history
    helpers.assert_close(ours, expected, helpers.FLOAT32)
    helpers.assert_close(model.get_weights(), alone.get_weights(), helpers.FLOAT32)
    assert helpers.copies_are_equal(model.optimizer.variables, strategy)


def test_what_does_not_fit_is_named_where_an_input_is_left_out():
    class Optional(unisono.Model):
        def __init__(self):
            super().__init__()
            self.out = keras.layers.Dense(2)

        def call(self, inputs):
            return self.out(inputs["a"])

    model = Optional()
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"targets of shape \(None, 5\) and outputs of shape \(None, 2\)"):
        model.fit({"a": X, "b": None}, np.ones((6, 5)), verbose=0)


def own_loss(y, outputs):
    return tf.reduce_mean(tf.squeeze(outputs, 1))


def raising(*values):
    raise TypeError("the line of the user's own")


class Raising(keras.layers.Layer):
    def call(self, x):
        raising()


class Twice(unisono.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)

    def call(self, x):
        return self.dense(self.dense(x))


OWN_LINE = r"line of the user.*test_bad_input.py, line"
PLAIN, CONVOLUTION = [keras.layers.Dense(2)], [keras.layers.Conv2D(2, 5)]
PENALIZED = [keras.layers.Dense(2, kernel_regularizer=raising)]
# input and layers, loss, shape of `x`, expected error
NOT_OF_THE_DATA = {
    "convolution": ([keras.Input((None, None, 1)), *CONVOLUTION], "mse", (6, 3, 3, 1), "egative|smaller"),
    "layer": ([Raising()], "mse", (6, 3), "line of the user"),
    "layer of a model": (Twice, "mse", (6, 3), "'dense' is incompatible"),
    "regularizer": ([keras.Input((3,)), *PENALIZED], "mse", (6, 3), "^the line of the user"),
    "metric": ([keras.Input((3,)), *PLAIN], "mse", (6, 3), f"`metrics` .*`weighted_metrics` .*{OWN_LINE}"),
    "loss": ([keras.Input((3,)), *PLAIN], own_loss, (6, 3), "loss=.*failed.*test_bad_input.py, line"),
    "CTC": ([keras.Input((3,)), *PLAIN], keras.losses.CTC(), (6, 3), "Logits .* are expected"),
}


@pytest.mark.parametrize("case", NOT_OF_THE_DATA)
def test_error_of_a_layer_or_a_loss_is_shown_and_no_argument_is_blamed(case):
    stack, loss, shape, words = NOT_OF_THE_DATA[case]
    with pytest.raises(Exception, match=words) as caught:
        model = stack() if callable(stack) else unisono.Sequential(stack)
        metrics = {"metrics": ["mae"], "weighted_metrics": [raising]} if case == "metric" else {}
        model.compile("sgd", loss, **metrics, run_eagerly=True)
        model.fit(np.ones(shape, "float32"), np.ones((6, 3 if case == "layer" else 2), "float32"), verbose=0)
    assert not any(words in str(caught.value) for words in ("does not fit", "Unable to automatically build"))


LABELS, ONES = np.array([0, 1, 0, 1, 0, 1]), np.ones(6, "float32")
SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
BAD_VALUES = {
    "NaN as a weight": (
        (X, Y, np.where(np.arange(6) == 4, np.nan, 1)),
        "mse",
        "`sample_weight` contains nan",
    ),
    "a label too many": ((X, np.where(np.arange(6) == 4, 2, LABELS), ONES), SPARSE, "label 2, .* 0 to 1"),
    "a label too small": ((X, np.where(np.arange(6) == 4, -2, LABELS), ONES), SPARSE, "label -2, .* 0 to 1"),
}


@pytest.mark.parametrize("replicas, jit", [(1, False), (1, True), (2, False)])
@pytest.mark.parametrize("case", BAD_VALUES)
@pytest.mark.short("a label too many-1-True")
def test_bad_value_in_a_dataset_is_reported_at_its_step_and_never_trained_on(case, replicas, jit):
    arrays, loss, words = BAD_VALUES[case]
    strategy = helpers.mirrored(2) if replicas == 2 else None
    model = small_model(strategy, loss=loss, jit_compile=jit)
    pipelines = dataset(*arrays).batch(2), dataset(*arrays).batch(2).filter(lambda *batch: True)
    for pipeline in pipelines:
        with pytest.raises(ValueError, match=words):
            model.fit(pipeline, verbose=0)
        assert np.isfinite(model.get_weights()[0]).all()
    good = dataset(X, np.where(LABELS == 1, -1, 0) if loss is SPARSE else Y, 0 * ONES).batch(2)
    assert np.isfinite(model.fit(good, verbose=0).history["loss"]).all()


@pytest.mark.parametrize("ignored", [None, 255, -1])
def test_labels_without_a_sign_are_those_that_they_are(ignored):
    labels = LABELS.astype("uint8")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=ignored)
    model = small_model(loss=loss, run_eagerly=True)
    for good in (labels, np.where(LABELS == 1, 255, labels).astype("uint8") if ignored == 255 else labels):
        model.fit(dataset(X, good).batch(6), verbose=0)
        model.fit(X, good, verbose=0)
    bad = np.where(LABELS == 1, 7, labels).astype("uint8")
    for data in ((dataset(X, bad).batch(6),), (X, bad)):
        with pytest.raises(ValueError, match=r"label 7, .* 0 to 1"):
            model.fit(*data, verbose=0)
