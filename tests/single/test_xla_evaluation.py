"""`evaluate` and validation use the graph or XLA, whichever is faster; the results do not depend on it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import FLOAT32, assert_close, assert_equal, mirrored
from xla_trials import Plan, Stop, StopAt, try_eagerly

import unisono
from unisono.trainer.run.loops.compiled import GRAPH, XLA
from unisono.trainer.run.xla import xla_choice
from unisono.trainer.run.xla.xla_choice import Measured, XlaChoice

ROWS, BATCH = 70, 8  # the last of nine batches has six samples
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(ROWS, 4)).astype("float32")
LABELS = RANDOM.integers(0, 3, ROWS)


def compiled(**options):
    if not tf.distribute.has_strategy():  # names restart, as in another process
        keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(5)
    layers = [keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.4), keras.layers.Dense(3)]
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


@pytest.fixture
def eager_to_try(monkeypatch):
    return try_eagerly(monkeypatch, fewest_steps=20)


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


@pytest.mark.short("arrays", "known")
@pytest.mark.parametrize("kind", INPUTS)
def test_evaluation_goes_over_to_xla_and_gives_the_numbers_of_the_graph(eager_to_try, kind):
    model, expected = compiled(), compiled(jit_compile=False).evaluate(**INPUTS[kind](), verbose=0)
    found, ways = [], []
    for _ in range(14):
        found.append(model.evaluate(**INPUTS[kind](), verbose=0))
        ways.append(model.test_function.backend)
    assert ways[0] == GRAPH and ways[-1] == XLA
    for each in found:
        assert_close(each, expected, FLOAT32, "logs")
    assert model.train_function is None, "nothing was trained"


def test_what_was_measured_of_many_layouts_is_forgotten(eager_to_try, monkeypatch):
    monkeypatch.setattr(xla_choice, "_LAYOUTS", 2)
    model = compiled()
    for rows in (40, 48, 56, 64):
        model.evaluate(X[:rows], LABELS[:rows], batch_size=BATCH, verbose=0)
    assert [rows for *_, rows in model.test_function.measured] == [56, 64]


def test_evaluation_stays_in_the_graph_where_xla_is_not_clearly_faster(eager_to_try):
    eager_to_try[XLA] = 195e-6
    model = compiled()
    for _ in range(14):
        model.evaluate(X, LABELS, batch_size=BATCH, verbose=0)
    (measured,) = model.test_function.measured.values()
    assert measured.backend == GRAPH and measured.xla_compiles and model.test_function.backend == GRAPH


@pytest.mark.parametrize("why", ["jit_compile=False", "run_eagerly", "replicas", "every batch", "few steps"])
def test_evaluation_stays_in_the_graph_where_no_clock_may_decide(eager_to_try, monkeypatch, why):
    monkeypatch.setattr(XlaChoice, "_decide", lambda *args: pytest.fail("the choice depends on a clock"))
    options = {"jit_compile": False} if why == "jit_compile=False" else {"run_eagerly": why == "run_eagerly"}
    if why == "few steps":
        monkeypatch.setattr("unisono.trainer.run.xla.xla_choice.FEWEST_STEPS", 1000)
    hooks = [keras.callbacks.LambdaCallback()]
    if why == "every batch":
        hooks[0].on_test_batch_end = lambda batch, logs: None
    with mirrored(2).scope() if why == "replicas" else tf.distribute.get_strategy().scope():
        model = compiled(**options)
    for _ in range(4):
        model.evaluate(X, LABELS, batch_size=BATCH, verbose=0, callbacks=hooks)
    assert model.test_function.backend == GRAPH


def test_short_passes_have_one_trace_until_xla_is_worth_a_try(eager_to_try, monkeypatch):
    monkeypatch.setattr(xla_choice, "WORTH", 1e9)
    model = compiled()
    for _ in range(14):
        model.evaluate(X, LABELS, batch_size=BATCH, verbose=0)
    assert model.test_function.compilations() == 1
    monkeypatch.setattr(xla_choice, "WORTH", 0.0)
    for _ in range(6):
        model.evaluate(X, LABELS, batch_size=BATCH, verbose=0)
    assert model.test_function.backend == XLA
    traces = model.test_function.compilations()
    model.evaluate(X, LABELS, batch_size=BATCH, verbose=0)
    assert model.test_function.compilations() == traces


def test_user_who_asks_for_xla_has_all_of_a_pass_compiled():
    model = compiled(jit_compile=True)
    found = model.evaluate(X, LABELS, batch_size=BATCH, verbose=0)
    assert model.test_function.backend == XLA
    assert_close(found, compiled(jit_compile=False).evaluate(X, LABELS, verbose=0), FLOAT32, "logs")


def test_step_of_the_users_own_is_compiled_with_its_logs(eager_to_try):
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


def test_validation_chooses_for_itself_from_what_is_ahead(eager_to_try):
    eager_to_try[XLA] = 195e-6
    model, plan = compiled(), Plan()
    history = fit(model, plan)
    assert model.train_function.backend == GRAPH, "XLA is not clearly faster"
    model.train_function, eager_to_try[XLA] = None, 30e-6
    fit(model, plan)
    # 112 steps remain in the first epoch; each epoch has eight
    assert plan.plan["validation"]["way"] == model.test_function.backend == GRAPH
    again, plan = compiled(), Plan()
    assert_close(list(fit(again, plan).values()), list(history.values()), FLOAT32, "history")
    assert plan.plan["validation"]["way"] == again.test_function.backend == XLA
    ((epoch, _, way),) = plan.plan["validation"]["switches"]
    assert way == XLA and 2 <= epoch <= 8


@pytest.mark.parametrize("way", [GRAPH, XLA])
def test_resumed_run_repeats_the_way_of_its_steps_and_of_its_validation_bit_for_bit(
    tmp_path, monkeypatch, way
):
    def run(folder, *callbacks):
        model = compiled()
        backup = unisono.callbacks.BackupAndRestore(tmp_path / folder)
        history = fit(model, backup, *callbacks, epochs=3)
        assert model.test_function.backend == model.train_function.backend == way
        return history, [v.numpy() for v in (*model.variables, *model.optimizer.variables)]

    def forced(way):
        monkeypatch.setattr(XlaChoice, "_first_backend", lambda self: (way, "the test says so"))

    forced(way)
    history, values = run("whole")
    with pytest.raises(Stop):
        run("killed", StopAt(2))
    forced(XLA if way == GRAPH else GRAPH)
    resumed, found = run("killed")
    assert resumed == history
    assert_equal(found, values)


@pytest.mark.parametrize("method", ["fit", "evaluate"])
def test_other_numbers_of_samples_are_measured_by_themselves(eager_to_try, method):
    """XLA would compile for each number of samples: clients of federated rounds, folds of a cross-validation."""
    model = compiled()
    for rows in (64, 56, 48, 64):
        getattr(model, method)(X[:rows], LABELS[:rows], batch_size=BATCH, verbose=0)
    function = model.train_function if method == "fit" else model.test_function
    assert sorted(each.steps for each in function.measured.values()) == [6, 7, 16]
    assert isinstance(next(iter(function.measured.values())), Measured)
