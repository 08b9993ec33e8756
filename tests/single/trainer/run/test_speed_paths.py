"""Speed never costs exactness: results and callback calls are the same in every mode of `fit`."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import FLOAT32, assert_close

import unisono
from unisono.trainer.run.loops import predictions
from unisono.trainer.run.outputs import loop_spec

# Nine steps; the last batch has six samples and needs its own graph, which not every test needs.
ROWS, BATCH = 70, 8
FULL = slice(64)
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(ROWS, 4)).astype("float32")
LABELS = RANDOM.integers(0, 3, ROWS)
WORDS = np.where(np.arange(6) < RANDOM.integers(1, 7, (ROWS, 1)), RANDOM.integers(1, 20, (ROWS, 6)), 0)


def with_dropout():
    inputs = keras.Input((4,))
    h = keras.layers.Dropout(0.4, seed=3)(keras.layers.Dense(16, activation="relu")(inputs))
    h = keras.layers.GaussianNoise(0.1)(h)
    h = keras.layers.BatchNormalization()(h)
    return unisono.Model(inputs, keras.layers.Dense(3)(h)), X, LABELS


def with_masks():
    inputs = keras.Input((6,), dtype="int32")
    h = keras.layers.Embedding(20, 4, mask_zero=True)(inputs)
    h = keras.layers.SimpleRNN(4, return_sequences=True)(h)
    return unisono.Model(inputs, keras.layers.Dense(3)(h)), WORDS, WORDS % 3


def with_two_outputs():
    inputs = keras.Input((4,))
    h = keras.layers.Dense(8, activation="tanh")(inputs)
    outputs = {"a": keras.layers.Dense(3, name="a")(h), "b": keras.layers.Dense(3, name="b")(h)}
    return unisono.Model(inputs, outputs), X, {"a": LABELS, "b": (LABELS + 1) % 3}


MODELS = {"dropout": with_dropout, "masks": with_masks, "two outputs": with_two_outputs}


class Steps(keras.callbacks.Callback):
    """Records its calls, at the steps for which it requests them."""

    def __init__(self, every):
        super().__init__()
        self.every, self.seen = every, []

    def steps_until_call(self, step):
        return self.every - step % self.every

    def on_train_batch_end(self, batch, logs=None):
        if (batch + 1) % self.every == 0:
            self.seen.append((batch, logs["loss"]))


class EveryBatch(keras.callbacks.Callback):
    """A callback that knows nothing about compiled calls."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_begin(self, batch, logs=None):
        self.seen.append(("begin", batch))

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(("end", batch))


def compiled(kind="dropout", **options):
    """A seeded model, its inputs and targets."""
    if not tf.distribute.has_strategy():  # names restart, as in another process
        keras.backend.clear_session(free_memory=False)
    keras.utils.set_random_seed(5)
    model, x, y = MODELS[kind]()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    outputs = model.output_names if kind == "two outputs" else None
    metrics = ["accuracy"] if outputs is None else {name: ["accuracy"] for name in outputs}
    model.compile(
        "adam", loss if outputs is None else dict.fromkeys(outputs, loss), metrics=metrics, **options
    )
    return model, x, y


def fit(model, x, y, *callbacks, **options):
    """History of three epochs, and the trained variables."""
    options = {"batch_size": BATCH, "epochs": 3, "verbose": 0, **options}
    history = model.fit(x, y, callbacks=list(callbacks), **options).history
    return history, [v.numpy() for v in (*model.variables, *model.optimizer.variables)]


def with_table(rows, optimizer, jit):
    """A compiled model of words, and its table."""
    words, rest = keras.layers.Embedding(rows, 4), [keras.layers.Flatten(), keras.layers.Dense(3)]
    model = unisono.Sequential([keras.Input((6,), dtype="int32"), words, *rest])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, jit_compile=jit)
    return model, words


RULES = {
    "adam": lambda: unisono.optimizers.Adam(0.01),
    "samples only": lambda: unisono.optimizers.SGD(0.1),
    "clipped": lambda: unisono.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.05),
}


@pytest.mark.parametrize("rule, table", [("adam", 20), ("clipped", 20), ("samples only", 5000)])
def test_rows_of_a_table_under_xla(rule, table):
    """Embedding rows that are absent from the batch keep their bits, and repeated ones get the sum."""
    found = {}
    for jit in (False, True):
        keras.utils.set_random_seed(5)
        model, words = with_table(table, RULES[rule](), jit)
        before = words.embeddings.numpy()
        found[jit] = fit(model, WORDS[FULL], LABELS[FULL])
        graph = model.train_function.graph().as_graph_def()
        sorts = any(node.op == "Unique" for f in graph.library.function for node in f.node_def)
        densely = jit or rule == "adam"  # SGD updates single rows of the table
        assert sorts == (table == 5000 or not densely)
        assert np.array_equal(words.embeddings.numpy()[WORDS.max() + 1 :], before[WORDS.max() + 1 :])
    assert_close(found[True][1], found[False][1], FLOAT32, "variables")


class Lazy(keras.optimizers.SGD):
    """A custom update rule that shrinks only the embedding rows that a batch uses."""

    def update_step(self, gradient, variable, learning_rate):
        assert isinstance(gradient, tf.IndexedSlices) == ("embeddings" in variable.name)
        if not isinstance(gradient, tf.IndexedSlices):
            super().update_step(gradient, variable, learning_rate)
            return
        rows = tf.gather(variable, gradient.indices)
        new = rows * 0.9 - tf.convert_to_tensor(learning_rate) * gradient.values
        variable.scatter_update(tf.IndexedSlices(new, gradient.indices))


@pytest.mark.parametrize("jit", [False, True])
def test_rule_that_updates_named_rows_alone_is_given_rows(jit):
    model, words = with_table(9, Lazy(0.1), jit)
    before = words.embeddings.numpy()
    model.fit(WORDS[:BATCH] % 5, LABELS[:BATCH], batch_size=BATCH, verbose=0)
    after = words.embeddings.numpy()
    assert np.array_equal(after[5:], before[5:])
    assert not np.any(after[:5] == before[:5])


@pytest.mark.long
@pytest.mark.parametrize("kind", [kind for kind in MODELS if kind != "dropout"])  # XLA draws other numbers
def test_whole_loop_under_xla_gives_the_numbers_of_the_plain_graph(kind):
    found = {}
    for jit in (False, True):
        steps = Steps(4)
        model, x, y = compiled(kind, jit_compile=jit)
        x, y = keras.tree.map_structure(lambda rows: rows[FULL], (x, y))
        found[jit] = fit(model, x, y, steps), steps.seen
        assert model.train_function.backend == ("xla" if jit else "graph")
    (history, values), seen = found[False]
    (xla_history, xla_values), xla_seen = found[True]
    assert history.keys() == xla_history.keys()
    assert_close(xla_values, values, FLOAT32, "variables")
    assert_close(list(xla_history.values()), list(history.values()), FLOAT32, "history")
    assert [step for step, _ in xla_seen] == [step for step, _ in seen] == [3, 7] * 3
    assert_close([loss for _, loss in xla_seen], [loss for _, loss in seen], FLOAT32, "losses at the steps")


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.short("False")
def test_callback_with_hooks_of_its_own_is_called_on_every_batch(jit):
    every = EveryBatch()
    model, x, y = compiled(jit_compile=jit)
    fit(model, x[FULL], y[FULL], every)
    assert every.seen == [(hook, batch) for batch in range(8) for hook in ("begin", "end")] * 3


# Predictions in one call.


def predictor(kind):
    inputs = keras.Input((4,))
    h = keras.layers.Dense(3)(inputs)
    outputs = {"a": h, "b": [keras.ops.argmax(h, -1), h[:, None]]} if kind == "nest" else h
    return unisono.Model(inputs, outputs)


def loops_of(model):
    """The graphs of loops that predict several batches in a call."""
    found = [compiled.function._loop for compiled in model.predict_function._compiled.values()]
    return [loop for loop in found if loop is not None]


@pytest.fixture
def early_loops(monkeypatch):
    """Predictions run in a loop from the second call on."""
    monkeypatch.setattr(predictions, "FEWEST_STEPS", 1)
    monkeypatch.setattr(predictions, "FEWEST_BATCHES", 1)


@pytest.mark.parametrize("kind", ["one", "nest"])
def test_predictions_in_a_loop_have_the_bits_of_those_one_by_one(kind, request):
    x = np.resize(X, (20 * BATCH + 3, 4))
    model = predictor(kind)
    expected = model.predict(x, batch_size=BATCH, verbose=0)
    assert not loops_of(model), "few batches"
    request.getfixturevalue("early_loops")
    actual = model.predict(x, batch_size=BATCH, verbose=0)
    assert [loop.experimental_get_tracing_count() for loop in loops_of(model)] == [1, 1]
    keras.tree.map_structure(np.testing.assert_array_equal, actual, expected)


@pytest.mark.parametrize("remainder", [True, False], ids=["last batch smaller", "all full"])
@pytest.mark.parametrize("length", ["known", "unknown"])
def test_predictions_from_a_dataset_in_a_loop_have_the_bits_of_those_one_by_one(length, remainder, request):
    rows = tf.data.Dataset.from_tensor_slices(np.resize(X, (5 * BATCH + 3, 4)))
    if length == "unknown":
        rows = rows.filter(lambda x: True)
    dataset = rows.batch(BATCH, drop_remainder=not remainder)
    model = predictor("nest")
    expected = model.predict(dataset, verbose=0)
    assert not loops_of(model), "few batches"
    request.getfixturevalue("early_loops")
    for _ in range(2):
        actual = model.predict(dataset, verbose=0)
        keras.tree.map_structure(np.testing.assert_array_equal, actual, expected)
    (loop,) = loops_of(model)
    assert loop.experimental_get_tracing_count() == 1


@pytest.mark.usefixtures("early_loops")
def test_outputs_that_vary_in_shape_are_predicted_one_by_one():
    class Varying(unisono.Model):
        def call(self, x):
            return x[:, : tf.cast(tf.reduce_max(x), tf.int32)]

    x = np.repeat([1.0, 1.0, 3.0, 2.0], BATCH)[:, None] * np.ones(4, "float32")
    model = Varying()
    for _ in range(2):
        assert model.predict(x, batch_size=BATCH, verbose=0).shape[0] == 4 * BATCH
    assert not loops_of(model)[0].experimental_get_tracing_count()


@pytest.mark.usefixtures("early_loops")
def test_error_in_a_loop_of_predictions_names_its_batch():
    model = unisono.Sequential(
        [keras.Input((4,)), keras.layers.Lambda(lambda x: tf.debugging.check_numerics(x, "bad"))]
    )
    x = np.ones((6 * BATCH, 4), "float32")
    model.predict(x, batch_size=BATCH, verbose=0)
    x[4 * BATCH] = np.nan
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        model.predict(x, batch_size=BATCH, verbose=0)
    assert "step 4 of the epoch" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "output", [tf.zeros(()), tf.zeros((3, 2)), tf.ragged.constant([[1], [2, 3]])], ids=str
)
def test_output_without_a_sample_for_each_input_fits_in_no_loop(output):
    assert loop_spec(output, 2) is None
