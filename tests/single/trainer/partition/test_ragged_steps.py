"""Models with ragged and sparse inputs on several replicas: each computes its own samples, as on one device."""

import itertools
import warnings

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from traced_steps import record_traced_steps

import unisono

_R = np.random.default_rng(3)
SAMPLES, BATCH = 11, 7  # 7 samples, then 4: a replica has none where two of three have two each
LENGTHS = [3, 0, 1, 4, 0, 0, 2, 5, 1, 0, 2]
HISTORY = tf.RaggedTensor.from_row_lengths(_R.integers(0, 9, sum(LENGTHS)), LENGTHS)
OTHERS = tf.RaggedTensor.from_row_lengths(_R.integers(0, 9, 14), [1, 2, 0, 0, 3, 1, 0, 2, 0, 4, 1])
WORDS = tf.RaggedTensor.from_row_lengths(_R.normal(size=(sum(LENGTHS), 3)), LENGTHS)
ITEMS, Y = _R.integers(0, 9, SAMPLES), _R.integers(0, 2, (SAMPLES, 1)).astype("float64")
SPARSE = tf.sparse.from_dense(np.maximum(_R.normal(size=(SAMPLES, 5)), 0))
WEIGHTS = _R.uniform(0.5, 2, SAMPLES)
INNER = _R.integers(0, 4, sum(LENGTHS))
SENTENCES = tf.RaggedTensor.from_row_lengths(
    tf.RaggedTensor.from_row_lengths(_R.integers(0, 9, sum(INNER)), INNER), LENGTHS
)


@pytest.fixture(autouse=True)
def float64():
    keras.config.set_floatx("float64")
    yield
    keras.config.set_floatx("float32")


class TwoTowers(unisono.Model):
    """A history and a candidate of one table, and other items of a second one."""

    def __init__(self):
        super().__init__()
        self.items = layers.Embedding(9, 4, embeddings_initializer="glorot_uniform")
        self.others = layers.Embedding(9, 4, embeddings_initializer="glorot_uniform")
        self.out = layers.Dense(1, "sigmoid")

    def call(self, inputs):
        history = tf.reduce_sum(self.items(inputs["history"]), 1)
        others = tf.reduce_max(tf.tanh(self.others(inputs["others"])), 1)
        return self.out(tf.concat([history * self.items(inputs["item"]), tf.maximum(others, -1.0)], 1))


class Tokens(unisono.Model):
    """A loss of each word, averaged over all words of the batch."""

    def __init__(self):
        super().__init__()
        self.out = layers.Dense(2)

    def call(self, x):
        return tf.reduce_sum(tf.ragged.map_flat_values(self.out, x), 1)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        labels = tf.gather(tf.cast(y[:, 0], tf.int32), x.value_rowids())
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self.out(x.values)))


class Labelled(unisono.Model):
    """A loss of each word and its label, which are two ragged arrays."""

    def __init__(self):
        super().__init__()
        self.out = layers.Dense(4)

    def call(self, x):
        return tf.reduce_sum(tf.ragged.map_flat_values(self.out, x), list(range(1, 1 + x.ragged_rank)))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y.flat_values, self.out(x.flat_values))
        return tf.reduce_mean(losses)


class Documents(unisono.Model):
    """Sums over words and sentences."""

    def __init__(self):
        super().__init__()
        self.words = layers.Embedding(9, 4, embeddings_initializer="glorot_uniform")
        self.out = layers.Dense(1, "sigmoid")

    def call(self, x):
        sentences = tf.reduce_sum(tf.ragged.map_flat_values(self.words, x), 2)
        return self.out(tf.reduce_sum(tf.ragged.map_flat_values(tf.tanh, sentences), 1))


def recurrent():
    words = keras.Input((None, 3), ragged=True)
    padded = layers.Lambda(lambda x: x.to_tensor(), output_shape=(None, 3))(words)
    hidden = layers.GRU(3)(padded)
    return unisono.Model(words, layers.Dense(1, "sigmoid")(hidden))


def sparse():
    inputs = keras.Input((5,), sparse=True)
    return unisono.Model(inputs, layers.Dense(1, "sigmoid")(layers.Dense(3, "tanh")(inputs)))


MODELS = {
    "two towers": (TwoTowers, {"history": HISTORY, "others": OTHERS, "item": ITEMS}),
    "tokens": (Tokens, WORDS),
    "documents": (Documents, SENTENCES),
    "recurrent": (recurrent, WORDS),
    "sparse": (sparse, SPARSE),
}


def results(name, replicas):
    """Everything that a model gives; a step that ran on one replica would be an error."""
    make, x = MODELS[name]
    keras.utils.set_random_seed(2)
    strategy = helpers.mirrored(replicas) if replicas > 1 else None
    with helpers.scope(strategy):
        model = make()
        loss = None if name == "tokens" else "binary_crossentropy"
        model.compile(
            unisono.optimizers.Adam(0.05), loss, weighted_metrics=["mse"] if loss else None, jit_compile=False
        )
    weights = None if name == "tokens" else WEIGHTS
    history = model.fit(x, Y, batch_size=BATCH, sample_weight=weights, epochs=2, shuffle=False, verbose=0)
    evaluated = model.evaluate(x, Y, batch_size=BATCH, sample_weight=weights, verbose=0, return_dict=True)
    predicted = model.predict(x, batch_size=BATCH, verbose=0)
    return history.history, model.get_weights(), evaluated, predicted


@pytest.mark.short("sparse")
@pytest.mark.parametrize("name", MODELS)
def test_model_with_ragged_or_sparse_inputs_matches_one_device_without_a_warning(name, monkeypatch):
    steps = record_traced_steps(monkeypatch)
    right = results(name, 1)
    for replicas in (2, 3):
        helpers.assert_close(results(name, replicas), right, 10 * helpers.FLOAT64, f"{name} on {replicas}")
    for step in steps:
        program = step.program
        assert not [n for n in program.nodes if program.communicates(n) and _is_of_values(step, n)]
    assert steps


def _is_of_values(traced, node):
    return traced.program.values[node.source].label.kind in ("sharded", "offsets", "places")


def test_layer_that_is_not_called_needs_no_variables_for_ragged_inputs():
    model = Documents()
    model.unused = layers.Dense(1)
    model.compile("sgd", "mse", jit_compile=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras warns of it, as for dense inputs
        model.fit(SENTENCES, Y, verbose=0)
    assert model.out.built and not model.unused.built


@pytest.mark.parametrize("axes", [1, 2])
@pytest.mark.short("1")
def test_replica_without_samples_gets_a_sample_without_values_in_a_custom_loop(axes):
    x, strategy = (HISTORY, SENTENCES)[axes - 1], helpers.mirrored(3)
    table = tf.constant(_R.normal(size=(9, 2)))

    def step(x):
        return tf.reduce_mean(tf.reduce_sum(tf.nn.embedding_lookup(table, x), list(range(1, axes + 1))) ** 2)

    run = tf.function(lambda part: strategy.run(unisono.replica_step(step), (part,)))
    batches = tf.data.Dataset.from_tensor_slices(x).batch(5)  # the last batch has one sample
    for part, whole in zip(strategy.experimental_distribute_dataset(batches), batches):
        helpers.assert_close(strategy.reduce("SUM", run(part), axis=None), step(whole), helpers.FLOAT64)


def test_replica_without_samples_gets_a_sample_without_entries_in_a_custom_loop():
    strategy, table = helpers.mirrored(3), tf.constant(_R.normal(size=(5, 2)))
    parts = [tf.sparse.slice(SPARSE, [first, 0], [count, 5]) for first, count in ((0, 2), (2, 1), (3, 0))]

    def step(x):
        return tf.reduce_mean(tf.sparse.sparse_dense_matmul(x, table) ** 2)

    @tf.function(input_signature=[tf.SparseTensorSpec([None, 5], "float64")] * 3)
    def run(*of_replicas):
        values = strategy.experimental_distribute_values_from_function(
            lambda context: of_replicas[context.replica_id_in_sync_group]
        )
        return strategy.reduce("SUM", strategy.run(unisono.replica_step(step), (values,)), axis=None)

    helpers.assert_close(run(*parts), step(tf.sparse.slice(SPARSE, [0, 0], [3, 5])), helpers.FLOAT64)


@pytest.mark.parametrize("ragged", ["one dimension", "two dimensions"])
@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.short("False-one dimension")
def test_labels_of_words_match_one_device_or_are_an_error_where_samples_have_other_numbers(equal, ragged):
    lengths = LENGTHS if equal else LENGTHS[::-1]
    y = tf.RaggedTensor.from_row_lengths(_R.integers(0, 4, sum(LENGTHS)), lengths)
    words = WORDS
    if ragged == "two dimensions":
        inner = INNER if equal else INNER[::-1]
        labels = tf.RaggedTensor.from_row_lengths(_R.integers(0, 4, sum(INNER)), inner)
        y = tf.RaggedTensor.from_row_lengths(labels, LENGTHS)
        words = SENTENCES.with_flat_values(tf.constant(_R.normal(size=(sum(INNER), 3))))

    def train(replicas):
        keras.utils.set_random_seed(2)
        with helpers.scope(helpers.mirrored(replicas) if replicas > 1 else None):
            model = Labelled()
            model.compile(unisono.optimizers.SGD(0.1), None, jit_compile=False)
        model.fit(tf.data.Dataset.from_tensor_slices((words, y)).batch(SAMPLES), epochs=2, verbose=0)
        return model.get_weights()

    if equal:
        helpers.assert_close(train(3), train(1), 10 * helpers.FLOAT64)
    else:
        with pytest.raises(tf.errors.InvalidArgumentError, match="must have as many values as in"):
            train(3)


TABLE = tf.constant(_R.normal(size=(9, 4)))
RAGGED_RESULTS = {
    "values": lambda x: tf.ragged.map_flat_values(tf.gather, TABLE, x) * 2.0,
    "words": lambda x: tf.ragged.map_flat_values(tf.strings.as_string, x),
    "also dense": lambda x: {"lengths": x.row_lengths(), "words": x[:, :2], "one": tf.constant(3.0)},
    "chosen": lambda x: tf.ragged.boolean_mask(x, x % 2 == 0),
    "samples in another order": lambda x: tf.gather(x, tf.range(x.nrows())[::-1]),
    "means of all values": lambda x: x.with_values(x.values - tf.reduce_sum(x.values)),
    "values of their own": lambda x: tf.strings.split(tf.strings.as_string(tf.reduce_sum(x, 1)) + " a"),
    "not of samples": lambda x: tf.RaggedTensor.from_uniform_row_length(x.values, 1),
    "the same for each batch": lambda x: tf.ragged.constant([[1, 2], [3]]),
    "values in another order": lambda x: x.with_values(tf.sort(x.values)),
    "words of sentences": lambda x: x.values,
    "two dimensions": lambda x: tf.stack([x, x + 1], axis=1),
}


@pytest.mark.parametrize("name", RAGGED_RESULTS)
@pytest.mark.short("chosen", "the same for each batch")
def test_ragged_results_are_those_of_one_device_without_a_warning(name):
    class Ragged(unisono.Model):
        def call(self, x):
            return RAGGED_RESULTS[name](x)

    found = []
    for replicas in (1, 3):
        with helpers.mirrored(replicas).scope():
            model = Ragged()
            model.compile("sgd", "mse")
        inputs = SENTENCES if "sentences" in name else HISTORY
        found.append(model.predict(inputs, batch_size=BATCH, verbose=0))
    one, several = (tf.nest.flatten(each, expand_composites=True) for each in found)
    assert len(one) == len(several)
    for own, other in zip(one, several):
        np.testing.assert_array_equal(np.asarray(own), np.asarray(other))


def test_replica_returns_the_ragged_results_of_its_own_samples(monkeypatch):
    steps, strategy = record_traced_steps(monkeypatch), helpers.mirrored(3)
    parts = [HISTORY[:2], HISTORY[:0], HISTORY[2:]]

    @tf.function
    def run():
        x = strategy.experimental_distribute_values_from_function(lambda r: parts[r.replica_id_in_sync_group])
        return strategy.experimental_local_results(strategy.run(unisono.replica_step(lambda x: x * 2), (x,)))

    assert [part.to_list() for part in run()] == [(2 * part).to_list() for part in parts]
    assert steps and not [n for step in steps for n in step.program.nodes if step.program.communicates(n)]


@pytest.mark.parametrize("eager", [False, True])
def test_replica_that_returns_a_sparse_tensor_is_an_error_without_a_warning(eager):
    strategy, step = helpers.mirrored(2), unisono.replica_step(tf.sparse.from_dense)
    run = (lambda fn: fn) if eager else tf.function
    with pytest.raises(ValueError, match=r"return `tf.sparse.to_dense` of it"):
        run(lambda: strategy.run(step, (tf.eye(2),)))()


def mesh_of_four():
    mesh = keras.distribution.DeviceMesh((2, 2), ("batch", "model"), [f"cpu:{i}" for i in range(4)])
    layouts = keras.distribution.LayoutMap(mesh)
    return unisono.distribute.strategy_of(
        keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    )


def test_replicas_of_a_mesh_join_sparse_arguments():
    strategy, bounds = mesh_of_four(), [0, 2, 3, 7, SAMPLES]
    parts = [tf.sparse.slice(SPARSE, [a, 0], [b - a, 5]) for a, b in itertools.pairwise(bounds)]

    @tf.function
    def run():
        x = strategy.experimental_distribute_values_from_function(lambda r: parts[r.replica_id_in_sync_group])
        return strategy.experimental_local_results(
            strategy.run(unisono.replica_step(lambda x: tf.sparse.to_dense(x) * 2), (x,))
        )

    helpers.assert_close(np.concatenate(run()), 2 * tf.sparse.to_dense(SPARSE), helpers.FLOAT64)


STEPS = {"samples": lambda x: x * 2, "words of sentences": lambda x: x.values * 2}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.short("words of sentences")
def test_replicas_of_a_mesh_return_ragged_results_once(name):
    strategy = mesh_of_four()
    parts = [SENTENCES[:2], SENTENCES[2:3], SENTENCES[3:7], SENTENCES[7:]]
    step = STEPS[name]

    @tf.function
    def run():
        x = strategy.experimental_distribute_values_from_function(lambda r: parts[r.replica_id_in_sync_group])
        return strategy.experimental_local_results(strategy.run(unisono.replica_step(step), (x,)))

    found = [row for part in run() for row in part.to_list()]
    assert found == step(SENTENCES).to_list()
