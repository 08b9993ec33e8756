"""The rule for the plain graph and XLA: decided before the first step, with the numbers of the graph."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import FLOAT32, assert_close, mirrored
from xla_trials import Stop, StopAt, force_backend

import unisono
from unisono.trainer.run.loops.compiled import GRAPH, XLA
from unisono.trainer.run.xla import xla_rule

ROWS, BATCH, EPOCHS = 70, 8, 3
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
    made = [layer() for layer in layers or [lambda: keras.layers.Dense(16, activation="relu")]]
    model = unisono.Sequential([keras.Input((4,)), *made, keras.layers.Dense(3, name="last")])
    model.compile("adam", LOSS, metrics=["accuracy"], **options)
    return model


def fit(model, *callbacks, x=X, y=LABELS, **options):
    """History, variables of the model and optimizer state."""
    options = {"batch_size": BATCH, "epochs": EPOCHS, "verbose": 0, **options}
    history = model.fit(x, y, callbacks=list(callbacks), **options).history
    return history, [v.numpy() for v in (*model.variables, *model.optimizer.variables)]


@pytest.fixture
def few(monkeypatch):
    """Compiling pays from one epoch more than this on."""
    monkeypatch.setattr(xla_rule, "FEWEST_STEPS", STEPS)


@pytest.mark.as_for_users
@pytest.mark.long
def test_rule_counts_the_steps_of_the_whole_fit(few):
    model = compiled()
    found = fit(model)
    assert model.train_function.backend == XLA and int(model.optimizer.iterations) == STEPS
    expected = fit(compiled(jit_compile=False))
    assert_close(found[1], expected[1], FLOAT32, "variables")
    assert_close(list(found[0].values()), list(expected[0].values()), FLOAT32, "history")
    short = compiled()
    fit(short, epochs=EPOCHS + 4, initial_epoch=5)
    assert short.train_function.backend == GRAPH and "fewer than 27 steps" in short.train_function.reason


@pytest.mark.long
def test_rule_is_the_same_in_a_resumed_run(tmp_path, few):
    with pytest.raises(Stop):
        fit(compiled(), unisono.callbacks.BackupAndRestore(tmp_path), StopAt(2))
    model = compiled()
    found = fit(model, unisono.callbacks.BackupAndRestore(tmp_path))
    assert model.train_function.backend == XLA, "one epoch is left, but the fit has three"
    whole = fit(compiled())
    assert found[0] == whole[0]
    assert all(np.array_equal(a, b) for a, b in zip(found[1], whole[1], strict=True))


@pytest.mark.parametrize("xla", [True, "auto"])
@pytest.mark.long
def test_user_code_is_traced_once_for_xla_and_no_step_runs_before(few, xla):
    calls = []

    class Counted(keras.layers.Layer):
        def call(self, x):
            calls.append(tf.executing_eagerly())
            return 2.0 * x

    model = compiled(Counted, jit_compile=xla)
    calls.clear()
    model.fit(X[:64], LABELS[:64], batch_size=BATCH, epochs=4, verbose=0)
    assert calls == [False] and model.train_function.backend == XLA
    assert model.train_function.compilations() == 1


@pytest.mark.long
def test_one_form_of_a_step_is_held(few):
    model = compiled()
    fit(model, epochs=1)
    graphs = model.train_function._functions()
    fit(model)
    assert model.train_function.backend == XLA
    assert not set(map(id, graphs)) & set(map(id, model.train_function._functions()))


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
        (lambda: keras.layers.Dropout(0.5), "random"),
        (lambda: keras.layers.Reshape((2, 2, 1)), "convolutions"),
    ],
)
@pytest.mark.short("<lambda>-convolutions")
def test_steps_that_xla_would_change_run_in_the_graph(few, layer, reason):
    others = [lambda: keras.layers.Conv2D(2, 2), keras.layers.Flatten] if reason == "convolutions" else []
    model = compiled(layer, *others)
    fit(model)
    function = model.train_function
    assert (
        function.backend == GRAPH and reason in function.reason and int(model.optimizer.iterations) == STEPS
    )
    assert function.compilations() == 2, "full batches, and the last: no graph for XLA is kept"
    fit(model)
    assert function is model.train_function and function.compilations() == 2


class Digits(keras.layers.Layer):  # XLA does not support strings
    def call(self, x):
        return x + tf.cast(tf.strings.length(tf.strings.as_string(x)), tf.float32)


def test_what_xla_does_not_support_runs_in_the_graph_and_says_so(few):
    model = compiled(Digits)
    with pytest.warns(match="XLA does not support"):
        found = fit(model, shuffle=False)[1]
    assert model.train_function.backend == GRAPH and int(model.optimizer.iterations) == STEPS
    expected = fit(compiled(Digits, jit_compile=False), shuffle=False)[1]
    assert_close(found, expected, FLOAT32, "variables")


@pytest.mark.long
def test_what_xla_does_not_support_runs_between_its_parts_on_replicas(monkeypatch):
    found = []
    for jit in ("auto", False):
        force_backend(monkeypatch, GRAPH if jit is False else XLA)
        with mirrored(2).scope():
            model = compiled(Digits, jit_compile=jit)
        found.append(fit(model, shuffle=False)[1])
    assert_close(*found, FLOAT32, "variables")


@pytest.mark.as_for_users
@pytest.mark.long
def test_xla_on_replicas_compiles_what_each_computes(monkeypatch):
    force_backend(monkeypatch, XLA)
    with mirrored(3).scope():
        model = compiled(lambda: keras.layers.Dense(8, activation="tanh"))
    found = fit(model)
    assert model.train_function.backend == XLA
    graphs = [f.get_concrete_function().graph for f in model.train_function._functions()]
    functions = [f for graph in graphs for f in graph.as_graph_def().library.function]
    assert any(bool(f.attr["_XlaMustCompile"].b) for f in functions)
    expected = fit(compiled(lambda: keras.layers.Dense(8, activation="tanh"), jit_compile=False))
    assert_close(found[1], expected[1], FLOAT32, "variables")


@pytest.mark.parametrize(
    "why", ["deterministic", "a layer", "run_eagerly", "every batch", "replicas", "of unknown length"]
)
@pytest.mark.short("deterministic", "a layer", "every batch", "of unknown length")
def test_rule_selects_the_graph_without_a_trace_for_xla(few, monkeypatch, why):
    callbacks, data = [], {}
    with mirrored(2 if why == "replicas" else 1).scope():
        model = compiled(run_eagerly=why == "run_eagerly")
    if why == "deterministic":
        monkeypatch.setattr(xla_rule, "operations_are_deterministic", lambda: True)
    if why == "a layer":
        model.layers[0].supports_jit = False
    if why == "every batch":
        callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)]
    if why == "of unknown length":
        batches = [(X[i : i + BATCH], LABELS[i : i + BATCH]) for i in range(0, 64, BATCH)]
        data = {"x": iter(batches * 9), "y": None, "batch_size": None, "steps_per_epoch": 20}
    monkeypatch.setattr("unisono.trainer.run.xla.xla_loops.compile_loop", lambda *args: pytest.fail("traced"))
    fit(model, *callbacks, **data)
    assert model.train_function.backend == GRAPH and model.train_function.reason


@pytest.mark.parametrize("jit, way", [(True, XLA), (False, GRAPH)])
@pytest.mark.short("False-graph")
def test_choice_of_the_user_is_obeyed(few, jit, way):
    model = compiled(jit_compile=jit)
    fit(model)
    assert model.train_function.backend == way


def test_operations_are_deterministic_where_they_were_asked_to_be():
    from unisono.compat.tensorflow_graphs.graphs import operations_are_deterministic

    assert not operations_are_deterministic()


@pytest.mark.parametrize("kind", ["known", "open"])
@pytest.mark.short("known")
def test_every_batch_of_a_pipeline_is_drawn_once(monkeypatch, kind):
    force_backend(monkeypatch, XLA)
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


def test_printing_step_prints_once_for_each_step(few, capfd):
    class Printing(keras.layers.Layer):
        def call(self, x):
            tf.print("called")
            return x

    model = compiled(Printing)
    fit(model)
    assert capfd.readouterr().err.count("called") == STEPS and "host" in model.train_function.reason


def test_input_without_a_fixed_size_does_not_decide_for_later_fits(few):
    model = compiled()
    windows = tf.data.Dataset.from_tensor_slices((X, LABELS)).repeat()
    sizes = windows.group_by_window(lambda *_: np.int64(0), lambda _, window: window.batch(9), 8)
    model.fit(sizes, epochs=EPOCHS, steps_per_epoch=9, verbose=0)
    first = model.train_function.backend, model.train_function.reason
    fit(model)
    assert first == (GRAPH, "the batches have no fixed size") and model.train_function.backend == XLA


def test_pipelines_of_several_batch_sizes_share_a_graph():
    model = compiled()
    for size in (8, 16, 8):
        model.fit(tf.data.Dataset.from_tensor_slices((X, LABELS)).batch(size), epochs=1, verbose=0)
    assert model.train_function.compilations() == 1


def test_error_of_a_step_is_not_said_to_be_one_of_xla(monkeypatch):
    force_backend(monkeypatch, XLA)

    class Fails(keras.layers.Layer):
        def call(self, x):
            return x + tf.strings.to_number(tf.strings.as_string(x) + "?")

    with mirrored(2).scope():
        model = compiled(Fails)
    with pytest.raises(tf.errors.InvalidArgumentError):  # and no warning, which would be an error here
        fit(model)
