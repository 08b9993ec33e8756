"""The choice between the plain graph and XLA is measured on the fit's own steps, and changes no results."""

import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import FLOAT32, assert_close, mirrored
from xla_trials import Plan, Stop, StopAt, try_eagerly

import unisono
from unisono.trainer.inputs import make_source
from unisono.trainer.run.loops.compiled import GRAPH, XLA
from unisono.trainer.run.xla import xla_choice
from unisono.trainer.run.xla.xla_choice import Measured, XlaChoice

ROWS, BATCH, EPOCHS = 70, 8, 20
STEPS = 9 * EPOCHS  # the last step of each epoch has six samples
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(ROWS, 4)).astype("float32")
LABELS = RANDOM.integers(0, 3, ROWS)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(*layers, **options):
    """A seeded model; `layers` are functions that create its layers."""
    if not tf.distribute.has_strategy():  # names restart, as in another process
        keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(5)
    usual = (
        lambda: keras.layers.Dense(16, activation="relu"),
        lambda: keras.layers.Dropout(0.4, seed=3),
    )
    made = [layer() for layer in layers or usual]
    model = unisono.Sequential([keras.Input((4,)), *made, keras.layers.Dense(3, name="last")])
    model.compile("adam", LOSS, metrics=["accuracy"], **options)
    return model


def fit(model, *callbacks, x=X, y=LABELS, **options):
    """History, variables of the model and optimizer state."""
    options = {"batch_size": BATCH, "epochs": EPOCHS, "verbose": 0, **options}
    history = model.fit(x, y, callbacks=list(callbacks), **options).history
    return history, [v.numpy() for v in (*model.variables, *model.optimizer.variables)]


@pytest.fixture
def eager_to_try(monkeypatch):
    return try_eagerly(monkeypatch, fewest_steps=1)


def choices(plan):
    """The plan without entries that other tests check."""
    return {name: value for name, value in plan.items() if name != "open rows"}


# The chosen backend.


@pytest.mark.as_for_users
def test_choice_goes_over_to_xla_on_the_fits_custom_steps_and_stays(eager_to_try):
    model, plan = compiled(), Plan()
    found = fit(model, plan)
    assert model.train_function.backend == plan.plan["way"] == XLA and plan.plan["settled"]
    assert [way for *_, way in plan.plan["switches"]] == [XLA]
    (measured,) = model.train_function.measured.values()
    assert measured.backend == XLA and measured.reason == "200 us a step in the plain graph, 30 us under XLA"
    assert measured.steps == int(model.optimizer.iterations) == STEPS, "every step counts exactly once"
    expected = fit(compiled(jit_compile=False))
    assert_close(found[1], expected[1], FLOAT32, "variables")
    assert_close(list(found[0].values()), list(expected[0].values()), FLOAT32, "history")


def test_choice_goes_back_where_xla_is_not_clearly_faster(eager_to_try):
    eager_to_try[XLA] = 195e-6
    model, plan = compiled(), Plan()
    fit(model, plan)
    assert model.train_function.backend == plan.plan["way"] == GRAPH and plan.plan["settled"]
    assert [way for *_, way in plan.plan["switches"]] == [XLA, GRAPH]


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (
            lambda: keras.layers.Lambda(
                lambda x: tf.ensure_shape(tf.numpy_function(np.abs, [x], tf.float32, False), x.shape)
            ),
            "host",
        ),
        (lambda: keras.layers.Lambda(lambda x: x + tf.random.normal((8, 4))[: tf.shape(x)[0]]), "random"),
        (lambda: keras.layers.Reshape((2, 2, 1)), "convolutions"),
    ],
)
def test_choice_does_not_try_steps_that_xla_would_change(eager_to_try, layer, reason):
    others = [lambda: keras.layers.Conv2D(2, 2), keras.layers.Flatten] if reason == "convolutions" else []
    model, plan = compiled(layer, *others), Plan()
    fit(model, plan)
    (measured,) = model.train_function.measured.values()
    assert plan.plan["settled"] and plan.plan["switches"] == [] and reason in measured.reason


def test_what_xla_cannot_compile_stays_in_the_graph_on_replicas(eager_to_try):
    class Digits(keras.layers.Layer):  # XLA does not support strings
        def call(self, x):
            return x + tf.cast(tf.strings.length(tf.strings.as_string(x)), tf.float32)

    found = {}
    for jit in ("auto", False):
        with mirrored(2).scope():
            model = compiled(Digits, jit_compile=jit)
        found[jit] = fit(model, shuffle=False)[1]
    assert_close(found["auto"], found[False], FLOAT32, "variables")


@pytest.mark.as_for_users
def test_choice_on_replicas_compiles_what_each_computes(eager_to_try):
    with mirrored(3).scope():
        model = compiled(lambda: keras.layers.Dense(8, activation="tanh"))
    found = fit(model)
    assert model.train_function.backend == XLA
    functions = [f for graph in _graphs(model.train_function) for f in graph.as_graph_def().library.function]
    assert any(bool(f.attr["_XlaMustCompile"].b) for f in functions)
    expected = fit(compiled(lambda: keras.layers.Dense(8, activation="tanh"), jit_compile=False))
    assert_close(found[1], expected[1], FLOAT32, "variables")


def _graphs(function):
    return [f.get_concrete_function().graph for f in function._functions()]


# Choices that do not depend on a clock.


def test_choice_by_a_clock_is_not_made_in_a_short_fit(monkeypatch):
    model, plan = compiled(), Plan()
    fit(model, plan)
    assert plan.plan == {"way": GRAPH, "settled": True, "switches": [], "open rows": "all"}


def test_choice_counts_the_steps_of_fits_in_a_loop(eager_to_try, monkeypatch):
    monkeypatch.setattr("unisono.trainer.run.xla.xla_choice.FEWEST_STEPS", 20)
    model = compiled()
    ways = []
    for _ in range(12):
        fit(model, epochs=1)
        ways.append(model.train_function.backend)
    assert ways[0] == GRAPH and ways[-1] == XLA
    plan = Plan()
    fit(model, plan, epochs=1)
    assert choices(plan.plan) == {"way": XLA, "settled": True, "switches": []}, "known from earlier fits"


@pytest.mark.parametrize("why", ["deterministic", "a layer", "run_eagerly", "every batch"])
def test_choice_by_a_clock_is_not_made_where_it_must_not(eager_to_try, monkeypatch, why):
    callbacks, model = [], compiled(run_eagerly=why == "run_eagerly")
    if why == "deterministic":
        monkeypatch.setattr(xla_choice, "operations_are_deterministic", lambda: True)
    if why == "a layer":
        model.layers[0].supports_jit = False
    if why == "every batch":
        callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)]
    plan = Plan()
    monkeypatch.setattr(XlaChoice, "_decide", lambda *args: pytest.fail("the choice depends on a clock"))
    monkeypatch.setattr("unisono.trainer.run.xla.xla_choice.FEWEST_STEPS", 10)
    fit(model, plan, *callbacks, epochs=2)
    assert choices(plan.plan) == {"way": GRAPH, "settled": True, "switches": []}


@pytest.mark.parametrize("jit, way", [(True, XLA), (False, GRAPH)])
def test_choice_of_the_user_is_obeyed(eager_to_try, jit, way):
    model, plan = compiled(jit_compile=jit), Plan()
    fit(model, plan)
    assert model.train_function.backend == way and plan.plan["settled"] and plan.plan["switches"] == []


def test_operations_are_deterministic_where_they_were_asked_to_be():
    from unisono.compat.tensorflow_graphs.graphs import operations_are_deterministic

    assert not operations_are_deterministic()


# Side effects.


@pytest.mark.parametrize("kind", ["known", "open"])
def test_choice_draws_every_batch_of_a_pipeline_once(eager_to_try, kind):
    drawn = []
    data = tf.data.Dataset.from_tensor_slices((X, LABELS)).enumerate()
    note = lambda i: np.int64(drawn.append(int(i)) or 0)  # noqa: E731
    zero = lambda i: tf.ensure_shape(tf.numpy_function(note, [i], tf.int64), [])  # noqa: E731
    data = data.map(lambda i, row: (row[0], row[1] + zero(i))).batch(BATCH, drop_remainder=kind == "known")
    model = compiled()
    model.fit(data, epochs=EPOCHS, verbose=0)
    assert model.train_function.backend == XLA
    # Samples that are dropped may be read ahead, or not.
    in_batches = ROWS // BATCH * BATCH if kind == "known" else ROWS
    assert sorted(i for i in drawn if i < in_batches) == sorted([*range(in_batches)] * EPOCHS)
    assert all(drawn.count(i) <= EPOCHS for i in range(in_batches, ROWS))


def test_choice_is_not_made_for_inputs_whose_shape_varies(eager_to_try):
    model = compiled()
    batches = [(X[i : i + BATCH], LABELS[i : i + BATCH]) for i in range(0, 64, BATCH)]
    model.fit(iter(batches * 20), epochs=4, steps_per_epoch=40, verbose=0)
    assert model.train_function.backend == GRAPH


def test_printing_step_prints_once_for_each_step(eager_to_try, capfd):
    class Printing(keras.layers.Layer):
        def call(self, x):
            tf.print("called")
            return x

    fit(compiled(Printing), epochs=2)
    assert capfd.readouterr().err.count("called") == 18


# The stored choice.


def test_choice_that_was_not_settled_goes_on_after_a_resume(tmp_path, eager_to_try, monkeypatch):
    monkeypatch.setattr(Measured, "seconds_a_step", lambda self, way: 1e-4 if way == GRAPH else None)
    model = compiled()
    with pytest.raises(Stop):
        fit(model, unisono.callbacks.BackupAndRestore(tmp_path), StopAt(2))
    assert model.train_function.backend == XLA
    monkeypatch.setattr(Measured, "seconds_a_step", lambda self, way: None if way == GRAPH else 1e-4)
    model, plan = compiled(), Plan()
    fit(model, unisono.callbacks.BackupAndRestore(tmp_path), plan)
    assert plan.plan["way"] == XLA and plan.plan["settled"]


def test_choice_is_remembered_in_the_folder_that_the_user_names(tmp_path, monkeypatch, eager_to_try):
    monkeypatch.setenv("UNISONO_CACHE_DIR", str(tmp_path / "ways"))
    fit(compiled())
    (file,) = (tmp_path / "ways").iterdir()
    model, plan = compiled(), Plan()
    fit(model, plan)
    assert choices(plan.plan) == {"way": XLA, "settled": True, "switches": []}
    assert first_plan() == {"way": XLA, "settled": True, "switches": []}
    for damaged in ("", "{}", "[1]", json.dumps({"way": 3})):
        file.write_text(damaged)
        assert first_plan() == {"way": GRAPH, "settled": False, "switches": []}
    plan = Plan()
    fit(compiled(), plan)
    assert len(plan.plan["switches"]) == 1, "measured again"


def first_plan():
    """The initial plan of a fit of a new model."""
    model, plan = compiled(), {}
    model.make_train_function()
    XlaChoice(model, model.train_function, make_source(X, LABELS, batch_size=BATCH), plan, STEPS)
    return choices(plan)


def test_choice_of_another_model_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("UNISONO_CACHE_DIR", str(tmp_path))
    choices = []
    for units, rows in ((3, BATCH), (4, BATCH), (3, 2 * BATCH)):
        model = compiled(functools.partial(keras.layers.Dense, units))
        model.make_train_function()
        source = make_source(X, LABELS, batch_size=rows)
        choices.append(XlaChoice(model, model.train_function, source, {}, 0))
    assert len({choice._file() for choice in choices}) == 3


def test_measured_takes_the_best_of_the_last_long_compiled_calls():
    measured = Measured()
    measured.seconds[GRAPH].extend([(1, 7e-3), (8, 7e-3), (600, 0.06), (1000, 0.1), (1000, 0.09)])
    assert measured.seconds_a_step(GRAPH) == pytest.approx(90e-6), "the overhead of a call is excluded"
    assert measured.seconds_a_step(XLA) is None
