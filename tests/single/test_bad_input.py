"""Inputs that cannot be trained on raise before the first step, with the argument and its value; no weight changes."""

from __future__ import annotations

import pathlib
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


@pytest.fixture(scope="module")
def model():
    """One model for all cases: an error does not change it."""
    return small_model(helpers.mirrored(2))


def dataset(*arrays: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(arrays)


def nothing():
    yield from ()


FIT = {
    "other lengths": (dict(y=Y[:5]), r"x: 6, y: 5"),
    "other lengths of weights": (dict(sample_weight=np.ones(4)), r"x: 6, y: 6, sample_weight: 4"),
    "no samples": (dict(x=X[:0], y=Y[:0]), r"no samples"),
    "no x": (dict(x=None, y=None), r"x is None"),
    "x an object": (dict(x=object()), r"x is a object"),
    "no y": (dict(y=None), r"`y` is None.*loss='mse'"),
    "other features": (dict(x=np.ones((6, 4), "float32")), r"shape.*4"),
    "other targets": (dict(y=np.ones((6, 5), "float32")), r"5"),
    "x text": (dict(x=np.array([["a", "b", "c"]] * 6)), r"string"),
    "class_weight list": (dict(class_weight=[1.0]), r"class_weight.*\[1\.0\]"),
    "class_weight and sample_weight": (
        dict(y=np.ones(6), class_weight={0: 1.0}, sample_weight=np.ones(6)),
        r"class_weight.*sample_weight|sample_weight.*class_weight",
    ),
    "validation_split of a dataset": (
        dict(x=dataset(X, Y).batch(2), y=None, validation_split=0.5),
        r"validation_split",
    ),
    "validation_data of other lengths": (dict(validation_data=(X, Y[:3])), r"x: 6, y: 3"),
    "samples without batches": (dict(x=dataset(X, Y), y=None), r"batch (it|them) first"),
    "empty dataset": (dict(x=dataset(X, Y).take(0).batch(2), y=None), r"no batch|empty|at least one"),
    "empty after filter": (
        dict(x=dataset(X, Y).filter(lambda x, y: False).batch(2), y=None),
        r"no batch|empty|at least one",
    ),
    "empty generator": (dict(x=nothing(), y=None), r"generator"),
    "dataset with batch_size": (dict(x=dataset(X, Y).batch(2), y=None, batch_size=2), r"batch_size \(2\)"),
    "dataset with y": (dict(x=dataset(X, Y).batch(2)), r"y \(ndarray\) must not be given"),
}


@pytest.mark.parametrize("case", FIT)
def test_fit_rejects(case, model):
    arguments, message = FIT[case]
    before = model.get_weights()
    steps = int(model.optimizer.iterations.numpy())
    with pytest.raises((ValueError, TypeError), match=message):
        model.fit(**{"x": X, "y": Y, "verbose": 0, **arguments})
    for a, b in zip(before, model.get_weights()):
        np.testing.assert_array_equal(a, b)
    assert int(model.optimizer.iterations.numpy()) == steps


OTHERS = {
    "evaluate, other lengths": (lambda m: m.evaluate(X, Y[:2], verbose=0), r"x: 6, y: 2"),
    "evaluate, batch_size": (lambda m: m.evaluate(X, Y, batch_size=0, verbose=0), r"batch_size.*0"),
    "evaluate, no samples": (lambda m: m.evaluate(X[:0], Y[:0], verbose=0), r"no samples"),
    "evaluate, steps": (lambda m: m.evaluate(X, Y, steps=0, verbose=0), r"steps.*0"),
    "predict, no samples": (lambda m: m.predict(X[:0], verbose=0), r"no samples"),
    "predict, batch_size": (lambda m: m.predict(X, batch_size=-1, verbose=0), r"batch_size.*-1"),
    "predict, features": (lambda m: m.predict(np.ones((2, 9), "float32"), verbose=0), r"shape.*9"),
    "predict, empty dataset": (
        lambda m: m.predict(dataset(X).take(0).batch(2), verbose=0),
        r"no batch|at least one",
    ),
    "train_on_batch, other lengths": (lambda m: m.train_on_batch(X, Y[:2]), r"x: 6, y: 2"),
    "train_on_batch, no samples": (lambda m: m.train_on_batch(X[:0], Y[:0]), r"no samples"),
    "test_on_batch, other lengths": (lambda m: m.test_on_batch(X, Y[:2]), r"x: 6, y: 2"),
    "predict_on_batch, no samples": (lambda m: m.predict_on_batch(X[:0]), r"no samples"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_methods_reject(case, model):
    call, message = OTHERS[case]
    before = model.get_weights()
    with pytest.raises((ValueError, TypeError), match=message):
        call(model)
    for a, b in zip(before, model.get_weights()):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(steps_per_execution=0), r"steps_per_execution.*0"),
        (dict(steps_per_execution="fast"), r"steps_per_execution.*'fast'"),
        (dict(steps_per_execution=True), r"steps_per_execution.*True"),
        (dict(jit_compile="yes"), r"jit_compile.*'yes'"),
        (dict(optimizer="no such"), r"no such"),
        (dict(optimizer=3), r"3"),
        (dict(unknown=1), r"unknown"),
    ],
)
def test_compile_rejects_and_keeps_what_was_compiled(arguments, message, model):
    before = model.optimizer
    with pytest.raises((ValueError, TypeError), match=message):
        model.compile(**{"optimizer": "sgd", "loss": "mse", **arguments})
    assert model.optimizer is before


@pytest.mark.parametrize(
    "arguments", [dict(loss="no such"), dict(metrics=["no such"]), dict(loss={"a": "mse"})]
)
def test_unknown_loss_or_metric_is_rejected_before_the_first_step(arguments):
    with pytest.raises((ValueError, TypeError)):
        model = small_model(**arguments)
        model.fit(X, Y, verbose=0)


@pytest.mark.parametrize("method", ["fit", "evaluate", "train_on_batch", "test_on_batch"])
def test_missing_compile_is_rejected(method):
    with pytest.raises(ValueError, match=r"compile\(\)"):
        getattr(small_model(compiled=False), method)(X, Y)


def test_missing_loss_is_rejected():
    with pytest.raises(ValueError, match="loss"):
        small_model(loss=None).fit(X, Y, verbose=0)


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


@pytest.mark.short("own loss", "synchronized")
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


def test_adopt_and_load_reject_what_is_no_model(tmp_path: pathlib.Path):
    with pytest.raises(TypeError, match=r"keras\.Model"):
        unisono.adopt(keras.layers.Dense(1))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"missing\.keras"):
        unisono.load_model(tmp_path / "missing.keras")


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
# layers, loss, shape of `x`, shape of `y`, expected error
NOT_OF_THE_DATA = {
    "convolution": (
        [keras.Input((None, None, 1)), keras.layers.Conv2D(2, 5)],
        "mse",
        (6, 3, 3, 1),
        (6, 2),
        "egative|smaller",
    ),
    "layer": ([Raising()], "mse", (6, 3), (6, 3), "line of the user"),
    "layer of a model": (Twice, "mse", (6, 3), (6, 2), "'dense' is incompatible"),
    "regularizer": (
        [keras.Input((3,)), keras.layers.Dense(2, kernel_regularizer=raising)],
        "mse",
        (6, 3),
        (6, 2),
        "^the line of the user",
    ),
    "metric": ([keras.Input((3,)), keras.layers.Dense(2)], "mse", (6, 3), (6, 2), f"`metrics` .*{OWN_LINE}"),
    "loss": (
        [keras.Input((3,)), keras.layers.Dense(2)],
        own_loss,
        (6, 3),
        (6, 2),
        "loss=.*failed.*test_bad_input.py, line",
    ),
    "CTC": (
        [keras.Input((3,)), keras.layers.Dense(2)],
        keras.losses.CTC(),
        (6, 3),
        (6, 2),
        "Logits .* are expected",
    ),
}


@pytest.mark.parametrize("case", NOT_OF_THE_DATA)
def test_error_of_a_layer_or_a_loss_is_shown_and_no_argument_is_blamed(case):
    stack, loss, *shapes, words = NOT_OF_THE_DATA[case]
    with pytest.raises(Exception, match=words) as caught:
        model = stack() if callable(stack) else unisono.Sequential(stack)
        model.compile("sgd", loss, metrics=[raising] if case == "metric" else [], run_eagerly=True)
        model.fit(*(np.ones(shape, "float32") for shape in shapes), verbose=0)
    assert not any(words in str(caught.value) for words in ("does not fit", "Unable to automatically build"))


LABELS, ONES = np.array([0, 1, 0, 1, 0, 1]), np.ones(6, "float32")
SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
BAD_VALUES = {
    "NaN as a weight": ((X, Y, np.where(np.arange(6) == 4, np.nan, 1)), "mse", "`sample_weight` holds NaN"),
    "a label too many": ((X, np.where(np.arange(6) == 4, 2, LABELS), ONES), SPARSE, "label 2, .* 0 to 1"),
    "a label too small": ((X, np.where(np.arange(6) == 4, -2, LABELS), ONES), SPARSE, "label -2, .* 0 to 1"),
}


@pytest.mark.parametrize("replicas, jit", [(1, False), (1, True), (2, False)])
@pytest.mark.parametrize("case", BAD_VALUES)
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
