"""`evaluate` and validation use the graph or XLA, by the rule of training; the results do not depend on it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import FLOAT32, assert_close, assert_equal, mirrored
from xla_trials import Stop, StopAt, force_backend

import unisono
from unisono.trainer.run.loops.compiled import GRAPH, XLA
from unisono.trainer.run.xla import xla_rule

ROWS, BATCH = 70, 8  # the last of nine batches has six samples
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(ROWS, 4)).astype("float32")
LABELS = RANDOM.integers(0, 3, ROWS)


def compiled(random=True, **options):
    if not tf.distribute.has_strategy():  # names restart, as in another process
        keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(5)
    middle = [keras.layers.Dropout(0.4)] if random else []
    layers = [keras.layers.Dense(16, activation="relu"), *middle, keras.layers.Dense(3)]
    model = unisono.Sequential([keras.Input((4,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        "adam",
        loss,
        metrics=["accuracy"],
        weighted_metrics=[keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")],
        **options,
    )
    return model


def datasets(kind, x=X, labels=LABELS):
    data = tf.data.Dataset.from_tensor_slices((x, labels))
    if kind == "open":
        data = data.filter(lambda x, label: label >= 0)
    return data.batch(BATCH, drop_remainder=kind == "known").prefetch(1)


INPUTS = {
    "arrays": lambda: {"x": X, "y": LABELS, "batch_size": BATCH},
    "weighted": lambda: {"x": X, "y": LABELS, "batch_size": BATCH, "sample_weight": np.arange(ROWS) / ROWS},
    "known": lambda: {"x": datasets("known")},
    "open": lambda: {"x": datasets("open")},
    "steps": lambda: {"x": datasets("last").repeat(), "steps": 13},
}


@pytest.mark.long
@pytest.mark.parametrize("kind", INPUTS)
def test_evaluation_under_xla_has_the_numbers_of_the_graph(monkeypatch, kind):
    monkeypatch.setattr(xla_rule, "FEWEST_STEPS", 8)
    expected = compiled(jit_compile=False).evaluate(**INPUTS[kind](), verbose=0)
    model = compiled()
    for _ in range(2):
        assert_close(model.evaluate(**INPUTS[kind](), verbose=0), expected, FLOAT32, "logs")
    assert model.test_function.backend == (GRAPH if kind == "open" else XLA)
    assert model.train_function is None, "nothing was trained"


@pytest.mark.parametrize("why", ["jit_compile=False", "run_eagerly", "replicas", "every batch", "few steps"])
@pytest.mark.short(but=["replicas"])
def test_evaluation_stays_in_the_graph(monkeypatch, why):
    monkeypatch.setattr(xla_rule, "FEWEST_STEPS", 1000 if why == "few steps" else 8)
    options = {"jit_compile": False} if why == "jit_compile=False" else {"run_eagerly": why == "run_eagerly"}
    hooks = [keras.callbacks.LambdaCallback()]
    if why == "every batch":
        hooks[0].on_test_batch_end = lambda batch, logs: None
    with mirrored(2).scope() if why == "replicas" else tf.distribute.get_strategy().scope():
        model = compiled(**options)
    model.evaluate(X, LABELS, batch_size=BATCH, verbose=0, callbacks=hooks)
    assert model.test_function.backend == GRAPH


@pytest.mark.long
def test_user_who_asks_for_xla_has_all_of_a_pass_compiled():
    model = compiled(jit_compile=True)
    found = model.evaluate(X, LABELS, batch_size=BATCH, verbose=0)
    assert model.test_function.backend == XLA
    assert_close(found, compiled(jit_compile=False).evaluate(X, LABELS, verbose=0), FLOAT32, "logs")


@pytest.mark.long
def test_step_of_the_users_own_is_compiled_with_its_logs(monkeypatch):
    force_backend(monkeypatch, XLA)

    class Own(unisono.Sequential):
        def test_step(self, data):
            x, y = data
            error = keras.ops.mean(keras.ops.square(self(x) - keras.ops.one_hot(y, 3)), axis=-1)
            self.error.update_state(error)
            return {"error": self.error.result(), "largest": keras.ops.max(error)}

    def made(**options):
        keras.utils.set_random_seed(5)
        model = Own([keras.layers.Dense(3)])
        model.error = keras.metrics.Mean(name="error")
        model.compile(**options)
        return model

    model = made()
    found = [model.evaluate(X, LABELS, batch_size=BATCH, verbose=0, return_dict=True) for _ in range(14)]
    assert model.test_function.backend == XLA
    expected = made(jit_compile=False).evaluate(X, LABELS, batch_size=BATCH, verbose=0, return_dict=True)
    for each in found:
        assert each.keys() == expected.keys()
        assert_close(list(each.values()), list(expected.values()), FLOAT32, "logs")


def fit(model, *callbacks, epochs=14):
    options = {"batch_size": BATCH, "epochs": epochs, "verbose": 0, "validation_data": (X[:60], LABELS[:60])}
    return model.fit(X, LABELS, callbacks=list(callbacks), **options).history


def test_validation_counts_the_steps_of_all_its_passes(monkeypatch):
    monkeypatch.setattr(xla_rule, "FEWEST_STEPS", 100)
    model = compiled()
    fit(model, epochs=12)
    assert model.train_function.backend == GRAPH == model.test_function.backend, "dropout, and 96 steps"
    again = compiled()
    fit(again, epochs=13)
    assert again.train_function.backend == GRAPH and again.test_function.backend == XLA


@pytest.mark.parametrize("way", [GRAPH, XLA])
@pytest.mark.long
def test_resumed_run_repeats_the_way_of_its_steps_and_of_its_validation_bit_for_bit(
    tmp_path, monkeypatch, way
):
    def run(folder, *callbacks):
        model = compiled(random=False)
        backup = unisono.callbacks.BackupAndRestore(tmp_path / folder)
        history = fit(model, backup, *callbacks, epochs=3)
        assert model.test_function.backend == model.train_function.backend == way
        return history, [v.numpy() for v in (*model.variables, *model.optimizer.variables)]

    force_backend(monkeypatch, way)
    history, values = run("whole")
    with pytest.raises(Stop):
        run("killed", StopAt(2))
    resumed, found = run("killed")
    assert resumed == history
    assert_equal(found, values)
