"""Ragged and sparse tensors, strings, nested structures and preprocessing layers on replicas match a single device."""

import gc
import threading

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import unisono

pytestmark = pytest.mark.slow

ROWS, BATCH = 15, 5  # neither divisible by 2 nor by 3
RANDOM = np.random.default_rng(1)
DENSE = RANDOM.normal(size=(ROWS, 4)).astype("float32")
TARGET = RANDOM.normal(size=(ROWS, 1)).astype("float32")
WORDS = np.array([f"w{i % 3} v{i % 2}" for i in range(ROWS)])


def compiled(*made, loss="mse", metrics=("mae",)):
    model = made[0] if len(made) == 1 else unisono.Model(*made)
    model.compile(unisono.optimizers.SGD(0.05), loss, metrics=metrics and [*metrics], jit_compile=False)
    return model


def sparse_model():
    inputs = keras.Input((4,), sparse=True)
    return compiled(inputs, layers.Dense(1)(layers.Dense(3, activation="relu")(inputs)))


class Span(tf.experimental.BatchableExtensionType):
    """A custom extension type: dense and ragged columns with the same samples."""

    place: tf.Tensor
    words: tf.RaggedTensor


class SpanModel(unisono.Model):
    """Keras calls no layer with an extension type, so the steps unpack it."""

    def __init__(self):
        super().__init__()
        self.out = layers.Dense(1)
        self.build((None, 5))

    def build(self, shape):
        self.out.build(shape)
        self.built = True

    def call(self, inputs):
        return self.out(inputs)

    def dense(self, span):
        return tf.concat([span.place, tf.reduce_sum(span.words, 1)[:, None]], 1)

    def train_step(self, data):
        return super().train_step((self.dense(data[0]), *data[1:]))

    def predict_step(self, data):
        return super().predict_step(self.dense(data))


class MeanOfWords(unisono.Model):
    """Accepts ragged inputs directly."""

    def __init__(self):
        super().__init__()
        self.table = layers.Embedding(6, 3)
        self.out = layers.Dense(1)

    def call(self, inputs):
        vectors = self.table(inputs.to_tensor())
        mask = tf.sequence_mask(inputs.row_lengths(), tf.shape(vectors)[1], vectors.dtype)[..., None]
        return self.out(tf.reduce_sum(vectors * mask, 1) / tf.reduce_sum(mask, 1))


@keras.saving.register_keras_serializable("tests")
class RaggedMean(layers.Layer):
    """The mean of each sample's values."""

    def call(self, inputs):
        return tf.reduce_mean(tf.cast(inputs, tf.float32), 1)[:, None]

    def compute_output_spec(self, inputs):
        return keras.KerasTensor((inputs.shape[0], 1), "float32")


def functional_ragged_model():
    inputs = keras.Input((None,), dtype="int64", ragged=True)
    outputs = RaggedMean()(inputs)
    return compiled(inputs, layers.Dense(1)(outputs))


def text_model():
    vectorize = layers.TextVectorization(output_mode="multi_hot", max_tokens=7)
    vectorize.adapt(WORDS)
    inputs = keras.Input((), dtype="string")
    return compiled(inputs, layers.Dense(1)(vectorize(inputs)))


def lookup_model():
    lookup = layers.StringLookup(vocabulary=["w0 v0", "w1 v1"], output_mode="one_hot")
    inputs = keras.Input((1,), dtype="string")
    return compiled(inputs, layers.Dense(1)(lookup(inputs)))


def normalized_model():
    normalize = layers.Normalization()
    normalize.adapt(DENSE)
    inputs = keras.Input((4,))
    return compiled(inputs, layers.Dense(1)(normalize(inputs)))


def two_by_two_model():
    a, b = keras.Input((4,), name="a"), keras.Input((1,), name="b")
    joined = layers.Concatenate()([a, b])
    outputs = {"p": layers.Dense(1, name="p")(joined), "q": layers.Dense(1, name="q")(joined)}
    return compiled({"a": a, "b": b}, outputs, loss={"p": "mse", "q": "mae"}, metrics=None)


def narrow_model():
    inputs = keras.Input((4,), dtype="int8")
    return compiled(inputs, layers.Dense(1)(layers.Lambda(lambda t: tf.cast(t, "float32") / 9)(inputs)))


LENGTHS = np.arange(ROWS) % 3 + 1
RAGGED = tf.RaggedTensor.from_row_lengths(np.arange(LENGTHS.sum()) % 6, LENGTHS)
CASES = {
    "sparse": (sparse_model, tf.sparse.from_dense(np.maximum(DENSE, 0)), TARGET),
    "ragged": (lambda: compiled(MeanOfWords()), RAGGED, TARGET),
    "ragged, functional": (functional_ragged_model, RAGGED, TARGET),
    "extension type": (
        lambda: compiled(SpanModel(), metrics=None),
        Span(DENSE, tf.cast(RAGGED, tf.float32) / 9),
        TARGET,
    ),
    "text": (text_model, WORDS, TARGET),
    "lookup": (lookup_model, WORDS[:, None], TARGET),
    "normalized": (normalized_model, DENSE, TARGET),
    "scalars and two outputs": (two_by_two_model, {"a": DENSE, "b": DENSE[:, 0]}, {"p": TARGET, "q": TARGET}),
    "int8": (narrow_model, (DENSE * 9).astype("int8"), TARGET),
}


def results(case, replicas, as_dataset, eager):
    make, x, y = CASES[case]
    keras.utils.set_random_seed(4)
    strategy = helpers.mirrored(replicas) if replicas > 1 else None
    with helpers.scope(strategy):
        model = make()
    model.run_eagerly = eager
    given = {"x": x, "y": y, "batch_size": BATCH}
    if as_dataset:
        given = {"x": tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH)}
    history = model.fit(**given, epochs=2, shuffle=False, verbose=0).history
    weights = [w for w in model.get_weights() if np.asarray(w).dtype.kind == "f"]
    data = tf.data.Dataset.from_tensor_slices(x).batch(BATCH) if as_dataset else x
    return [history["loss"], weights, model.predict(data, verbose=0)]


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
@pytest.mark.falls_back
def test_structure_gives_the_results_of_one_device(case):
    right = results(case, 1, as_dataset=False, eager=True)
    in_graph = case in ("sparse", "ragged", "text", "scalars and two outputs", "int8")  # as a dataset
    for replicas, as_dataset, eager in ((1, True, True), (2, in_graph, False), (3, not in_graph, True)):
        found = results(case, replicas, as_dataset, eager)
        helpers.assert_close(found, right, helpers.FLOAT32, f"{replicas} replicas, dataset {as_dataset}")


@pytest.mark.parametrize("case", ["sparse", "ragged, functional"])
@pytest.mark.short("sparse")
def test_model_with_composite_inputs_is_saved_and_opened_with_and_without_us(case, tmp_path):
    make, x, y = CASES[case]
    model = make()
    model.fit(x, y, batch_size=BATCH, verbose=0)
    right = model.predict(x, verbose=0)
    model.save(tmp_path / "model.keras")
    helpers.assert_close(unisono.load_model(tmp_path / "model.keras").predict(x, verbose=0), right, 0.0)
    plain = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    helpers.assert_close(np.asarray(plain(x)), right, helpers.FLOAT32)


def test_error_of_a_generator_leaves_the_weights_of_the_last_good_step_and_closes_everything():
    class Own(Exception):
        pass

    class Closed(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch, logs=None):
            self.steps = batch + 1

    def broken():
        for start in (0, 4):
            yield DENSE[start : start + 4], TARGET[start : start + 4]
        raise Own("the file ends here")

    keras.utils.set_random_seed(4)
    model, seen = normalized_model(), Closed()
    with pytest.raises(Own, match="the file ends here") as caught:
        model.fit(broken(), verbose=0, callbacks=[seen])
    assert "batch 2 of epoch 0" in caught.value.__notes__[0]
    assert seen.steps == 2
    keras.utils.set_random_seed(4)
    right = normalized_model()
    right.fit(DENSE[:8], TARGET[:8], batch_size=4, shuffle=False, verbose=0)
    helpers.assert_close(model.get_weights(), right.get_weights(), 0.0)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("unisono-feed")]


@pytest.mark.long
def test_many_fits_of_one_model_neither_trace_again_nor_keep_anything():
    model = normalized_model()
    kinds = [
        lambda: {"x": DENSE, "y": TARGET, "batch_size": BATCH},
        lambda: {"x": iter([(DENSE[:4], TARGET[:4])] * 3)},
        lambda: {"x": tf.data.Dataset.from_tensor_slices((DENSE, TARGET)).batch(4)},
    ]
    for make in kinds:
        model.fit(**make(), verbose=0)
    before = dict(model.train_function._compiled)
    traces = [each.function.experimental_get_tracing_count() for each in before.values()]
    gc.collect()
    objects = sum(isinstance(o, tf.Tensor | np.ndarray) for o in gc.get_objects())
    for _ in range(10):
        for make in kinds:
            model.fit(**make(), verbose=0)
    assert dict(model.train_function._compiled) == before
    assert [each.function.experimental_get_tracing_count() for each in before.values()] == traces
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("unisono-feed")]
    gc.collect()
    left = sum(isinstance(o, tf.Tensor | np.ndarray) for o in gc.get_objects()) - objects
    assert left < 30, "not one object for each of thirty fits"


class Broken(Exception):
    """An error in user code."""


class BrokenBatches(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, number):
        if number == 3:
            raise Broken("the file ends here")
        return DENSE[2 * number : 2 * number + 2], TARGET[2 * number : 2 * number + 2]


def broken_pipeline():
    whole = tf.data.Dataset.from_tensor_slices((DENSE, TARGET)).batch(2, drop_remainder=True)
    return whole.enumerate().map(
        lambda i, batch: (
            tf.debugging.check_numerics(batch[0] / tf.cast(i != 3, tf.float32), "ends here"),
            batch[1],
        )
    )


@pytest.mark.parametrize("open_ended", [False, True])
@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_error_of_a_pipeline_says_at_which_step_it_came(method, open_ended):
    model = normalized_model()
    data = broken_pipeline()
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        getattr(model, method)(data.filter(lambda *_: True) if open_ended else data, verbose=0)
    assert any("step 3 of the epoch" in note for note in caught.value.__notes__)


BROKEN = {
    "threads": (lambda: BrokenBatches(workers=2), Broken, "ends here"),
    "processes": (lambda: BrokenBatches(workers=2, use_multiprocessing=True), Broken, "ends here"),
    "pipeline": (broken_pipeline, tf.errors.InvalidArgumentError, "ends here"),
    "not finite": (
        lambda: iter([(np.nan * DENSE[:2] if i == 3 else DENSE[:2], TARGET[:2]) for i in range(5)]),
        None,
        "",
    ),
}


@pytest.mark.short("not finite")
@pytest.mark.parametrize("case", BROKEN)
def test_what_goes_wrong_in_the_middle_leaves_the_last_good_step_on_every_replica(case, tmp_path):
    make, error, message = BROKEN[case]
    results = []
    for good in (False, True):
        keras.utils.set_random_seed(4)
        with helpers.scope(helpers.mirrored(2)):
            model = unisono.Sequential([keras.Input((4,)), layers.Dense(1)])
            optimizer = unisono.optimizers.AdamW(0.1, weight_decay=0.5)  # weight decay needs no gradient
            model.compile(optimizer, "mse", steps_per_execution=4)
        lines = unisono.callbacks.JSONLines(tmp_path / "log.jsonl", every=1)
        if good:
            rows = np.array([0, 1] * 3) if case == "not finite" else np.arange(6)
            model.fit(DENSE[rows], TARGET[rows], batch_size=2, shuffle=False, verbose=0)
        elif error is None:
            with pytest.warns(UserWarning, match="gradient"):
                model.fit(make(), verbose=0, callbacks=[unisono.callbacks.AnomalyReport(), lines])
        else:
            with pytest.raises(error, match=message):
                model.fit(make(), verbose=0, shuffle=False, callbacks=[lines])
        results.append([model.get_weights(), int(model.optimizer.iterations.numpy())])
        assert lines._file._stream is None
    helpers.assert_close(*results, helpers.FLOAT32)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("unisono-")]


def test_one_array_of_weights_of_steps_counts_for_every_output_as_in_keras():
    x = np.random.default_rng(1).normal(size=(6, 3, 2)).astype("float32")
    weights, found = np.arange(18.0).reshape(6, 3), []
    for make, count in ((keras.Model, 2), (unisono.Model, 2), (unisono.Model, 1)):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((3, 2))
        model = make(inputs, [keras.layers.Dense(1, name=name)(inputs) for name in "ab"])
        model.compile("sgd", "mse", run_eagerly=True)
        given = [weights] * 2 if count == 2 else weights
        model.fit(x, [x[..., :1]] * 2, sample_weight=given, batch_size=6, shuffle=False, verbose=0)
        found.append(model.get_weights())
    for ours in found[1:]:
        helpers.assert_close(ours, found[0], helpers.FLOAT32)
