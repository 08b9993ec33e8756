"""How often a step is traced: once for all batch sizes in a short fit, and never for analysis only."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import FLOAT32, GradientsOfItsOwn, assert_close, mirrored

import unisono

ROWS, BATCH = 27, 8
RANDOM = np.random.default_rng(0)
X = RANDOM.integers(0, 50, (ROWS, 3))
Y = RANDOM.normal(size=(ROWS, 1)).astype("float32")


class CustomStep(GradientsOfItsOwn, unisono.Model):
    """Counts how often its step is traced."""

    traces = 0

    def logs_of(self, loss, x):
        type(self).traces += 1
        return {"own": loss, "rows": tf.shape(x)[0]}


def compiled(base=unisono.Model, of_batches=True):
    """A model with an embedding; `of_batches`: with layers that draw numbers or depend on the entire batch."""
    if not tf.distribute.has_strategy():
        keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(3)
    inputs = keras.Input((3,), dtype="int32")
    found = keras.layers.Flatten()(keras.layers.Embedding(50, 4)(inputs))
    if of_batches:
        found = keras.layers.BatchNormalization()(keras.layers.Dropout(0.3, seed=2)(found))
    model = base(inputs, keras.layers.Dense(1)(found))
    model.compile("adam", "mse", metrics=["mae"])
    return model


def trained(model, y=Y, **options):
    history = model.fit(X, y, batch_size=BATCH, epochs=2, verbose=0, **options).history
    return [v.numpy() for v in (*model.variables, *model.optimizer.variables)], list(history.values())


CASES = {
    "shuffled": (Y, {"validation_split": 0.3}),
    "in order": (np.int64(Y > 0), {"shuffle": False, "class_weight": {0: 1.0, 1: 2.0}}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.short("in order")
def test_short_fit_has_one_graph_for_batches_of_both_sizes_and_the_bits_of_two(case, monkeypatch):
    y, options = CASES[case]
    model = compiled()
    weights, history = trained(model, y, **options)
    assert model.train_function.compilations() == 1
    assert "validation_split" not in options or model.test_function.compilations() == 1
    monkeypatch.setattr("unisono.trainer.run.xla.xla_rule.FIXED_SIZES", 1)
    model = compiled()
    expected, expected_history = trained(model, y, **options)
    assert model.train_function.compilations() == 2
    assert all(np.array_equal(a, b) for a, b in zip(weights, expected, strict=True))
    assert history == expected_history


@pytest.mark.long
def test_short_fit_on_replicas_has_one_graph_where_each_step_is_a_call():
    with mirrored(2).scope():
        model = compiled(of_batches=False)
    found, history = trained(model)
    assert model.train_function.compilations() == 1
    expected, expected_history = trained(compiled(of_batches=False))
    assert_close(found, expected, FLOAT32, "variables")
    assert_close(history, expected_history, FLOAT32, "history")


@pytest.mark.long
def test_what_is_left_of_a_long_fit_has_one_graph_whatever_its_size(monkeypatch):
    monkeypatch.setattr("unisono.trainer.run.xla.xla_rule.FIXED_SIZES", 1)
    model = compiled()
    for rows in (27, 26, 25):
        model.fit(X[:rows], Y[:rows], batch_size=BATCH, verbose=0)
    assert model.train_function.compilations() == 2


def test_custom_step_is_traced_to_be_built_and_to_be_run():
    CustomStep.traces = 0
    _, history = trained(compiled(CustomStep))
    assert CustomStep.traces == 2
    assert history[1] == [3, 3] and np.isfinite(history).all()


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.short("1")
def test_layers_of_a_known_graph_are_called_once_on_any_number_of_replicas(replicas, monkeypatch):
    calls, call = [], keras.layers.Dense.call

    def counted(self, inputs, training=None):
        calls.append(self)
        return call(self, inputs, training=training)

    monkeypatch.setattr(keras.layers.Dense, "call", counted)
    with mirrored(replicas).scope() if replicas > 1 else contextlib.nullcontext():
        dense = keras.layers.Dense
        inputs = {"a": keras.Input((3,), name="a"), "b": keras.Input((3,), dtype="int32", name="b")}
        both = [dense(1)(inputs["a"]), dense(1)(keras.ops.cast(inputs["b"], "float32"))]
        named = unisono.Model(inputs, both)
        sequential = unisono.Sequential([keras.Input((3,)), dense(2, "relu"), dense(1)])
    y = np.stack([Y, Y], 0)
    for model, x, targets in ((named, {"a": X, "b": X}, list(y)), (sequential, X, Y)):
        model.compile("sgd", "mse", metrics=["mae"] if model is sequential else [["mae"], ["mae"]])
        calls.clear()
        model.fit(x, targets, batch_size=ROWS, verbose=0)
        assert len(calls) == 2
        model.evaluate(x, targets, batch_size=ROWS, verbose=0)
        assert len(calls) == 4
