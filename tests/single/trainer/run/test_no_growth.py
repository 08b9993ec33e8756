"""No leaks: fifty calls trace as often as one, and leave no objects."""

import gc
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import Batches, mirrored, open_files, scope, threads_since
from tensorflow.python.eager import context
from xla_trials import take_for_gpus

import unisono
from unisono.trainer.inputs import Chunk

ROWS, BATCH = 19, 8  # two full batches and one of three samples
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
# Python objects that fifty calls may leave: a few lists and cache entries. One graph has twenty times as many.
FEW = 1000


def model_under(strategy=None, **options):
    with scope(strategy):
        model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile("adam", "mse", metrics=["mae"], **options)
    return model


def dataset():
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)


def objects():
    """The live Python objects, and the functions in TensorFlow's runtime."""
    gc.collect()
    return len(gc.get_objects()), len(context.context().list_function_names())


def graphs():
    """The live function graphs."""
    gc.collect()
    return sum(isinstance(o, tf.__internal__.FuncGraph) for o in gc.get_objects())


def traces_after_fifty(call, *functions):
    """The traces of some functions of a model, which fifty calls leave constant, as they do objects and graphs."""
    model, after = model_under(), {}
    for number in range(1, 51):
        call(model)
        if number in (2, 20, 50):
            traced = [getattr(model, function).compilations() for function in functions]
            after[number] = traced, graphs(), objects()
    assert after[2][0] == after[20][0] == after[50][0]
    assert after[2][1] >= after[20][1] >= after[50][1]  # an earlier test may still release some
    assert after[50][2][0] - after[20][2][0] < FEW and after[50][2][1] <= after[20][2][1]
    return after[50][0]


@pytest.mark.long
def test_fifty_fits_trace_once_and_leave_no_object():
    def fit(model):
        model.fit(X, Y, batch_size=BATCH, validation_data=(X, Y), verbose=0)

    # For the full batches and the last one.
    assert traces_after_fifty(fit, "train_function", "test_function") == [1, 1]


BATCHES = [(X[i : i + BATCH], Y[i : i + BATCH]) for i in range(0, ROWS, BATCH)]


class Interruption(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt


def fit_interrupted(model, folder):
    with pytest.raises(KeyboardInterrupt):
        model.fit(dataset().prefetch(2), verbose=0, callbacks=[Interruption()])


def fit_with_callbacks(model, folder):
    callbacks = [
        keras.callbacks.CSVLogger(folder / "log.csv"),
        keras.callbacks.EarlyStopping("val_loss", restore_best_weights=True),
        unisono.callbacks.JSONLines(folder / "log.jsonl"),
        unisono.callbacks.TrainingReport(folder / "report.html"),
        unisono.callbacks.ModelCheckpoint(folder / "model.keras"),
        unisono.callbacks.BackupAndRestore(folder / "backup", save_freq=1),
    ]
    model.fit(X, Y, BATCH, epochs=2, verbose=0, validation_split=0.2, callbacks=callbacks)


# (number of replicas, call of `fit`)
FITS = {
    "arrays": (1, lambda model, _: model.fit(X, Y, BATCH, verbose=0)),
    "two replicas": (2, lambda model, _: model.fit(X, Y, BATCH, verbose=0, validation_data=(X, Y))),
    "dataset": (1, lambda model, _: model.fit(dataset(), verbose=0, validation_data=dataset())),
    "dataset on two replicas": (2, lambda model, _: model.fit(dataset().prefetch(2), verbose=0)),
    "endless dataset": (1, lambda model, _: model.fit(dataset().repeat(), steps_per_epoch=2, verbose=0)),
    "generator": (1, lambda model, _: model.fit(iter(BATCHES), verbose=0)),
    "PyDataset": (
        1,
        lambda model, _: model.fit(Batches(BATCHES), verbose=0, validation_data=Batches(BATCHES)),
    ),
    "PyDataset with threads": (1, lambda model, _: model.fit(Batches(BATCHES, workers=2), verbose=0)),
    "interrupted": (1, fit_interrupted),
    "callbacks": (1, fit_with_callbacks),
}


def iterators():
    """The live dataset iterators."""
    gc.collect()
    return sum(isinstance(o, tf.data.Iterator) for o in gc.get_objects())


@pytest.mark.long
def test_fifty_short_fits_of_every_kind_leave_no_thread_iterator_graph_or_file(tmp_path):
    models = {
        name: model_under(mirrored(replicas) if replicas > 1 else None)
        for name, (replicas, _) in FITS.items()
    }
    threads, files, after = set(threading.enumerate()), open_files(), []
    for _ in range(50 // len(FITS)):
        for name, (_, fit) in FITS.items():
            fit(models[name], tmp_path)
            assert not threads_since(threads), f"threads after {name}"
            assert open_files() <= files, f"open files after {name}"
        after.append((graphs(), iterators(), objects()))
    assert after[1][0] >= after[-1][0]
    assert after[1][1] == after[-1][1] == 0
    assert after[-1][2][0] - after[1][2][0] < FEW and after[-1][2][1] <= after[1][2][1]


@pytest.mark.short("interrupted-XLA")
@pytest.mark.parametrize("way", ["graph", "XLA", "XLA as on GPUs"])
@pytest.mark.parametrize("kind", ["arrays", "dataset", "two replicas", "interrupted"])
def test_compiled_functions_do_not_hold_the_data_of_a_fit(tmp_path, monkeypatch, kind, way):
    take_for_gpus(monkeypatch, "" if way == "XLA as on GPUs" else "none")
    replicas, fit = FITS[kind]
    jit_compile = {"graph": False, "XLA": True}.get(way, "auto")
    model = model_under(mirrored(replicas) if replicas > 1 else None, jit_compile=jit_compile)
    fit(model, tmp_path)
    gc.collect()
    assert not [o for o in gc.get_objects() if isinstance(o, Chunk) and o.inputs is not None]
    assert not iterators()


@pytest.mark.long
def test_fifty_evaluations_and_predictions_trace_once_and_leave_no_object():
    def use(model):
        model.evaluate(X, Y, batch_size=BATCH, verbose=0)
        model.predict(X, batch_size=BATCH, verbose=0)

    assert traces_after_fifty(use, "test_function", "predict_function")[1] <= 2


@pytest.mark.parametrize("options", [{}, {"jit_compile": True}, {"steps_per_execution": 2}], ids=str)
@pytest.mark.long
def test_last_partial_batch_is_traced_once(options):
    model = model_under(**options)
    model.fit(X, Y, batch_size=BATCH, verbose=0)
    first = model.train_function.compilations()
    model.fit(X, Y, batch_size=BATCH, epochs=6, verbose=0)
    model.fit(X, Y, batch_size=BATCH, shuffle=False, epochs=2, verbose=0)
    model.fit(X, Y, batch_size=BATCH, shuffle=False, epochs=2, verbose=0)
    assert first <= 2
    assert model.train_function.compilations() <= first + 2  # in-order samples are read by another function


@pytest.mark.long
def test_data_of_another_length_is_not_traced_again():
    model = model_under()
    for rows in (16, 8, 32, 64):
        data = np.resize(X, (rows, 3)), np.resize(Y, (rows, 1))
        model.fit(*data, batch_size=BATCH, verbose=0)
        model.evaluate(*data, batch_size=BATCH, verbose=0)
        model.predict(data[0], batch_size=BATCH, verbose=0)
    assert model.train_function.compilations() == model.test_function.compilations() == 1
    assert model.predict_function.compilations() <= 2  # the second length leaves the batch size unknown


@pytest.mark.parametrize("case", ["new datasets of one kind", "several replicas"])
@pytest.mark.long
def test_what_a_fit_traced_is_not_traced_again(case):
    model = model_under(mirrored(2) if case == "several replicas" else None)

    def fit():
        given = {"x": X, "y": Y, "batch_size": BATCH} if case == "several replicas" else {"x": dataset()}
        model.fit(**given, epochs=2, verbose=0)

    fit()
    first, alive = model.train_function.compilations(), graphs()
    for _ in range(10):
        fit()
    assert model.train_function.compilations() == first <= 2
    assert graphs() <= alive


@pytest.mark.long
def test_single_batches_trace_once():
    model = model_under()
    for _ in range(20):
        model.train_on_batch(X[:BATCH], Y[:BATCH])
        model.test_on_batch(X[:BATCH], Y[:BATCH])
        model.predict_on_batch(X[:BATCH])
    assert (
        model.train_function.compilations()
        == model.test_function.compilations()
        == model.predict_function.compilations()
        == 1
    )


@pytest.mark.long
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_model_that_is_no_longer_used_is_given_back(replicas):
    def use_one():
        model = model_under(mirrored(replicas) if replicas > 1 else None)
        model.fit(X, Y, batch_size=BATCH, validation_data=(X, Y), verbose=0)
        keras.backend.clear_session()

    use_one()
    alive = graphs()
    for _ in range(2):
        use_one()
    assert graphs() <= alive


@pytest.mark.long
def test_gradients_that_the_user_made_for_a_graph_are_kept_as_long_as_it():
    @tf.custom_gradient
    def doubled_backwards(x):
        return tf.identity(x), lambda gradient: 2 * gradient

    inner, traced = tf.function(lambda x: doubled_backwards(x) ** 2), []

    class Model(unisono.Sequential):
        def test_step(self, data):
            traced.append(inner.get_concrete_function(tf.TensorSpec(())))
            return {"square": traced[0](tf.constant(3.0))}

    with scope(mirrored(2)):
        model = Model([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.evaluate(X, Y, batch_size=BATCH, verbose=0)
    del model
    keras.backend.clear_session()
    gc.collect()
    with tf.GradientTape() as tape:
        x = tf.constant(3.0)
        tape.watch(x)
        y = traced[0](x)
    assert float(tape.gradient(y, x)) == 12.0
