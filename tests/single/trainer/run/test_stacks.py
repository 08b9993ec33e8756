"""Batches of a `tf.data` pipeline under XLA: drawn into stacks, with the results and errors of the plain graph."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import FLOAT32, GradientsOfItsOwn, assert_close, mirrored, scope
from xla_trials import force_backend, take_for_gpus

import unisono
from unisono.trainer.run.loops.compiled import GRAPH, XLA
from unisono.trainer.run.xla import xla_loops as stacks
from unisono.trainer.run.xla import xla_rule

ROWS, BATCH = 70, 8
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(ROWS, 3)).astype("float32")
Y = RANDOM.integers(0, 3, ROWS).astype("int32")


def rows():
    return tf.data.Dataset.from_tensor_slices((X, Y))


def broken(dataset):
    return dataset.enumerate().map(
        lambda i, batch: (
            tf.debugging.check_numerics(batch[0] / tf.cast(i != 5, tf.float32), "broken"),
            batch[1],
        )
    )


PIPELINES = {
    "full batches": lambda: rows().batch(BATCH, drop_remainder=True),
    "a partial batch": lambda: rows().shuffle(ROWS, seed=3).batch(BATCH).prefetch(2),
    "partial batches in the middle": lambda: rows().batch(BATCH).repeat(2),
    "of unknown length": lambda: rows().filter(lambda x, y: x[0] > -1).batch(BATCH),
    "without end": lambda: rows().repeat().batch(BATCH),
    "broken": lambda: broken(rows().batch(BATCH)),
    "broken, full batches": lambda: broken(rows().batch(BATCH, drop_remainder=True)),
    "broken, of unknown length": lambda: broken(rows().filter(lambda x, y: True).batch(BATCH)),
}
PLACES = {
    "no strategy": lambda: None,
    "another device": lambda: tf.distribute.OneDeviceStrategy("CPU:1"),
    "a replica's thread": lambda: mirrored(1),
    "a GPU": lambda: tf.distribute.OneDeviceStrategy(
        "CPU:1"
    ),  # a stand-in: batches are copied to it in stacks
}


def treat_as_gpu(monkeypatch, device="CPU:1"):
    take_for_gpus(monkeypatch, device, (stacks, xla_rule))


class CustomStep(GradientsOfItsOwn, unisono.Model):
    """A model whose step returns custom logs."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def call(self, x, training=False):
        return self.inner(x, training=training)

    def logs_of(self, loss, x):
        return {"own": loss, "rows": tf.cast(tf.shape(x)[0], tf.float32)}


def trained(pipeline, way, strategy, monkeypatch, own=False, **options):
    """History, variables and optimizer state, and the notes of the error."""
    force_backend(monkeypatch, way)
    keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(1)
    with scope(strategy):
        layers = keras.layers
        hidden, normal = layers.Dense(8, activation="relu"), layers.BatchNormalization()
        model = unisono.Sequential([keras.Input((3,)), hidden, normal, layers.Dense(3)])
        model = CustomStep(model) if own else model
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, metrics=["accuracy"], **options)
    history, notes = {}, []
    try:
        steps = 7 if pipeline == "without end" else None
        history = model.fit(PIPELINES[pipeline](), epochs=3, steps_per_epoch=steps, verbose=0).history
    except tf.errors.OpError as error:
        notes = error.__notes__
    graphs = {len(compiled.graphs) for compiled in model.train_function._compiled.values()}
    assert graphs == {2 if way == XLA else 1}, "a stack has a function for batches of other sizes"
    return history, [v.numpy() for v in (*model.variables, *model.optimizer.variables)], notes


@pytest.mark.short("broken-a GPU")
@pytest.mark.parametrize(
    "pipeline, place",
    [
        ("a partial batch", "another device"),
        ("partial batches in the middle", "no strategy"),
        ("of unknown length", "a replica's thread"),
        ("without end", "no strategy"),
        ("broken", "a replica's thread"),
        ("broken", "a GPU"),
        ("partial batches in the middle", "a GPU"),
        ("broken, full batches", "another device"),
        ("broken, of unknown length", "no strategy"),
    ],
)
def test_stacks_give_the_numbers_of_the_plain_graph(pipeline, place, monkeypatch):
    strategy = PLACES[place]()
    right, values, notes = trained(pipeline, GRAPH, strategy, monkeypatch)
    if place == "a GPU":
        treat_as_gpu(monkeypatch)
    history, xla_values, xla_notes = trained(pipeline, XLA, strategy, monkeypatch)
    assert_close(xla_values, values, FLOAT32, "variables")
    assert history.keys() == right.keys()
    assert_close(list(history.values()), list(right.values()), FLOAT32, "history")
    assert xla_notes == notes
    assert bool(notes) == ("broken" in pipeline)
    assert all("step 5 of the epoch" in note for note in notes)


def of_unknown_sizes():
    def batches():
        for start in range(0, ROWS, BATCH):
            yield X[start : start + BATCH], Y[start : start + BATCH]

    spec = tf.TensorSpec((None, 3), "float32"), tf.TensorSpec((None,), "int32")
    return tf.data.Dataset.from_generator(batches, output_signature=spec)


@pytest.mark.short("of unknown sizes-False")
@pytest.mark.parametrize("small", [True, False])
@pytest.mark.parametrize(
    "pipeline", ["a partial batch", "of unknown length", "without end", "of unknown sizes"]
)
def test_gpu_compiles_the_steps_of_every_pipeline_of_numbers(pipeline, small, monkeypatch):
    monkeypatch.setitem(PIPELINES, "of unknown sizes", of_unknown_sizes)
    found = []
    for on_gpu in (False, True):
        if on_gpu:
            treat_as_gpu(monkeypatch)
            monkeypatch.setattr(stacks, "FEWEST_FOR_GPU", 1 if small else 2**30)
        keras.utils.set_random_seed(1)
        with tf.distribute.OneDeviceStrategy("CPU:1").scope():
            model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
            model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        steps = 7 if pipeline == "without end" else None
        history = model.fit(PIPELINES[pipeline](), epochs=2, steps_per_epoch=steps, verbose=0).history
        found.append((history["loss"], model.get_weights()))
        assert (model.train_function.backend, on_gpu) in ((XLA, True), (GRAPH, False)), (
            model.train_function.reason
        )
    graphs = {len(compiled.graphs) for compiled in model.train_function._compiled.values()}
    assert graphs == {2 if small and pipeline != "of unknown sizes" else 1}
    assert_close(found[1], found[0], FLOAT32)


@pytest.mark.parametrize("pipeline", ["full batches", "a partial batch"])
@pytest.mark.short("full batches")
def test_logs_of_a_step_of_the_users_own(pipeline, monkeypatch):
    right, values, _ = trained(pipeline, GRAPH, None, monkeypatch, own=True)
    history, xla_values, _ = trained(pipeline, XLA, None, monkeypatch, own=True)
    assert_close(xla_values, values, FLOAT32, "variables")
    assert_close(list(history.values()), list(right.values()), FLOAT32, "history")
    assert history["rows"] == [BATCH if pipeline == "full batches" else ROWS % BATCH] * 3


def test_stack_is_bounded_in_batches_and_in_bytes():
    def size(samples, *shape):
        inputs = types.SimpleNamespace(element_spec=tf.TensorSpec([None, *shape], "float32"))
        return stacks.stack_size(types.SimpleNamespace(inputs=inputs, usual_batch_size=samples))

    assert [size(8, 1), size(1024, 1024), size(1024, 2**20)] == [stacks.MOST_STEPS, 16, 1]


@pytest.mark.long
def test_stacks_may_be_small(monkeypatch):
    _, values, _ = trained("a partial batch", GRAPH, None, monkeypatch)
    for most_steps, most_bytes in ((2, 2**20), (9, 1)):
        monkeypatch.setattr(stacks, "MOST_STEPS", most_steps)
        monkeypatch.setattr(stacks, "MOST_BYTES", most_bytes)
        _, small, _ = trained("a partial batch", XLA, None, monkeypatch, steps_per_execution=5)
        assert_close(small, values, FLOAT32, "variables")


@pytest.mark.parametrize("pipeline", ["a partial batch", "of unknown length"])
@pytest.mark.short("of unknown length")
def test_user_who_asks_for_xla_gets_it_for_a_pipeline(pipeline):
    found = []
    for jit in (False, True):
        keras.utils.set_random_seed(1)
        model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True), jit_compile=jit)
        found.append(model.fit(PIPELINES[pipeline](), epochs=2, verbose=0).history["loss"])
        assert model.train_function.backend == (XLA if jit else GRAPH)
    assert_close(found[1], found[0], FLOAT32, "losses")


@pytest.mark.parametrize(
    "pipeline, found",
    [
        (lambda d: d.batch(5), 5),
        (lambda d: d.batch(5, num_parallel_calls=2).map(lambda x: x).prefetch(1), 5),
        (lambda d: d.batch(5).unbatch().batch(3).cache().take(2), 3),
        (lambda d: d.padded_batch(5).with_options(tf.data.Options()), 5),
        (lambda d: d.batch(5).enumerate(), 5),
        (lambda d: tf.data.Dataset.zip((d.batch(5), d.batch(3))), None),
        (lambda d: d, None),
    ],
)
def test_size_of_a_batch_is_read_from_the_pipeline(pipeline, found):
    from unisono.compat.tensorflow_private.tf_data import batch_size

    assert batch_size(pipeline(tf.data.Dataset.range(20))) == found
