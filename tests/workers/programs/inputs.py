"""Every kind of input for `fit`, `evaluate` and `predict`, on any strategy, to be compared with one device."""

import sys
import tempfile

import keras
import numpy as np
import tensorflow as tf

import unisono
from unisono.distribute import auto_strategy, worker_index

# A smaller last batch is another graph: see `fit.py` and `tests/single/trainer/inputs/test_input_kinds.py`.
ROWS, BATCH = 24, 8
random = np.random.default_rng(0)
X = random.normal(size=(ROWS, 4)).astype("float32")
Y = random.normal(size=(ROWS, 1)).astype("float32")
W = random.uniform(0.5, 2.0, size=ROWS).astype("float32")
LENGTHS = np.arange(ROWS) % 3 + 1
WORDS = np.array([f"w{i % 4}" for i in range(ROWS)])


class Batches(keras.utils.PyDataset):
    """Slices of arrays."""

    def __init__(self, arrays, **keywords):
        super().__init__(**keywords)
        self.arrays = arrays

    def __len__(self):
        return -(-len(self.arrays[0]) // BATCH)

    def __getitem__(self, number):
        return tuple(array[number * BATCH : (number + 1) * BATCH] for array in self.arrays)


class MeanOfRows(keras.layers.Layer):
    """The mean of the values of each ragged sample."""

    def call(self, inputs):
        return tf.reduce_mean(inputs, 1)[:, None]

    def compute_output_spec(self, inputs):
        return keras.KerasTensor((inputs.shape[0], 1), "float32")


def dense_model():
    return keras.Input((4,)), [keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)]


def mixed_model():
    """Sparse, ragged and text."""
    inputs = {
        "sparse": keras.Input((4,), sparse=True, name="sparse"),
        "ragged": keras.Input((None,), ragged=True, name="ragged"),
        "text": keras.Input((1,), dtype="string", name="text"),
    }
    lookup = keras.layers.StringLookup(vocabulary=["w0", "w1", "w3"], output_mode="one_hot")

    def joined(parts):
        each = [keras.layers.Dense(2)(parts["sparse"]), MeanOfRows()(parts["ragged"]), lookup(parts["text"])]
        return keras.layers.Concatenate()(each)

    return inputs, [joined, keras.layers.Dense(1)]


def dict_model():
    inputs = {"a": keras.Input((3,), name="a"), "b": keras.Input((1,), name="b")}
    return inputs, [lambda parts: keras.layers.Concatenate()([parts["a"], parts["b"]]), keras.layers.Dense(1)]


def embedding_model():
    tokens = keras.layers.Lambda(lambda x: tf.cast(x * 10, tf.int32) % 50)
    table = keras.layers.Embedding(50, 2)  # its gradient has as many slices as the batch has numbers
    return keras.Input((4,)), [tokens, table, keras.layers.Flatten(), keras.layers.Dense(1)]


def centered(x):
    return x - keras.ops.mean(x, axis=0)


def gathering_model():
    """A layer that requires the samples of all replicas."""
    layers = [keras.layers.Dense(3), keras.layers.Lambda(centered), keras.layers.Dense(1)]
    return keras.Input((4,)), layers


def mixing_model():
    """One replica computes the whole batch."""
    return keras.Input((4,)), [keras.layers.Dense(3), centered, keras.layers.Dense(1)]


def of_the_whole_batch(y_true, y_pred):
    """A loss that depends on the whole batch, so that samples are gathered."""
    return tf.reduce_mean(tf.square(y_true - y_pred)) + tf.square(tf.reduce_mean(y_pred))


def make_model(make, strategy, loss, eager):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        inputs, layers = make()
        outputs = inputs
        for layer in layers:
            outputs = layer(outputs)
        model = unisono.Model(inputs, outputs)
        way = {"run_eagerly": True} if eager else {"jit_compile": False}
        model.compile(unisono.optimizers.SGD(0.1), loss, weighted_metrics=["mae"], **way)
    return model


def dataset(arrays):
    return tf.data.Dataset.from_tensor_slices(tuple(arrays)).batch(BATCH)


def of_pieces(arrays, pieces):
    """The samples in batches with these indices."""

    def batches():
        for piece in pieces:
            yield tuple(tf.gather(array, np.array(piece, "int64")) for array in arrays)

    spec = tuple(tf.TensorSpec([None, *array.shape[1:]], array.dtype) for array in arrays)
    return tf.data.Dataset.from_generator(batches, output_signature=spec)


def of_several_sizes(arrays):
    """The samples in batches of 8, 6, 4, 2 and 4."""
    return of_pieces(arrays, [range(0, 8), range(8, 14), range(14, 18), range(18, 20), range(20, 24)])


def generator(arrays):
    return (batch for batch in dataset(arrays))


def sharded(arrays):
    """A function of the context: the slice of each replica, batch by batch, sharded as arrays are."""

    def make(context):
        pipelines, mine = context.num_input_pipelines, context.input_pipeline_id
        each = context.num_replicas_in_sync // pipelines
        pieces = []
        for start in range(0, ROWS, BATCH):
            rows = min(BATCH, ROWS - start)
            for replica in range(mine * each, (mine + 1) * each):
                count = context.num_replicas_in_sync
                first, last = replica * rows // count, (replica + 1) * rows // count
                pieces.append(range(start + first, start + last))
        return of_pieces(arrays, [piece for piece in pieces if len(piece)])

    return make


# From the arrays (x, y, weights: as many as the method takes) and the strategy: what to pass as x, or a tuple (x, y, w).
KINDS = {
    "arrays": lambda a, s: a,
    "memory-mapped": lambda a, s: (mapped(a[0]), *a[1:]),
    "dataset": lambda a, s: dataset(a),
    "endless dataset": lambda a, s: dataset(a).repeat(),
    "dataset of unknown length": lambda a, s: dataset(a).filter(lambda *batch: True),
    "generator": lambda a, s: generator(a),
    "PyDataset": lambda a, s: Batches(a),
    "PyDataset with threads": lambda a, s: Batches(a, workers=2),
    "PyDataset with processes": lambda a, s: Batches(a, workers=2, use_multiprocessing=True),
    "distributed dataset": lambda a, s: s.experimental_distribute_dataset(dataset(a)),
    "function of the context": lambda a, s: sharded(a),
    "batches of several sizes": lambda a, s: of_several_sizes(a),
}
WITHOUT_END = {"endless dataset"}
SHARED_OUT = {"distributed dataset", "function of the context"}  # these need a strategy: compared with arrays


def mixed():
    return {
        "sparse": tf.sparse.from_dense(np.maximum(X, 0)),
        "ragged": tf.RaggedTensor.from_row_lengths(X.ravel()[: LENGTHS.sum()], LENGTHS),
        "text": WORDS[:, None],
    }


# The layers, the loss and the inputs: created lazily, because workers must connect before the first tensor.
MODELS = {
    "dense": (dense_model, "mse", lambda: X),
    "dict": (dict_model, "mse", lambda: {"a": X[:, :3], "b": X[:, 3:]}),
    "mixed": (mixed_model, "mse", mixed),
    "embedding": (embedding_model, "mse", lambda: X),
    "whole batch": (dense_model, of_the_whole_batch, lambda: X),
    "gathering": (gathering_model, "mse", lambda: X),
    "mixing": (mixing_model, "mse", lambda: X),
}
# These only differ in how a process reads its samples, which `tests/single/trainer/inputs/test_input_kinds.py` checks.
READ_AS_OTHERS = ("memory-mapped", "PyDataset", "PyDataset with threads")
CASES = [
    *(("dense", kind) for kind in KINDS if kind not in READ_AS_OTHERS),
    ("dict", "generator"),
    ("mixed", "dataset of unknown length"),
    ("embedding", "batches of several sizes"),
    ("whole batch", "batches of several sizes"),
    ("gathering", "batches of several sizes"),
    ("mixing", "dataset of unknown length"),
]


def mapped(array):
    with tempfile.NamedTemporaryFile(suffix=".npy") as file:
        np.save(file, array)
        file.flush()
        return np.load(file.name, mmap_mode="r")  # the mapping outlives the file name


def results(model, start, x, make, strategy, limited):
    """Losses of two epochs, trained weights, evaluation and predictions."""
    model.set_weights(start)

    def given(*arrays):
        data = make(arrays, strategy)
        if not isinstance(data, tuple):
            return {"x": data}
        return {**dict(zip(("x", "y", "sample_weight"), data)), "batch_size": BATCH}

    steps = -(-ROWS // BATCH)
    fit_limit, limit = ({"steps_per_epoch": steps}, {"steps": steps}) if limited else ({}, {})
    history = []
    for _ in range(2):
        history += model.fit(**given(x, Y, W), shuffle=False, verbose=0, **fit_limit).history["loss"]
    return {
        "loss": history,
        "weights": np.concatenate([np.ravel(w) for w in model.get_weights() if w.dtype.kind == "f"]),
        "evaluated": model.evaluate(**given(x, Y, W), verbose=0, **limit),
        "answers": model.predict(**given(x), verbose=0, **limit),
    }


MORE_CASES = [("dense", "arrays"), *(("dense", kind) for kind in READ_AS_OTHERS)]

# Where replicas share one copy of the weights, inputs work as for any single-process strategy. Different are reads
# and writes of weights, and how each kind distributes batches.
SHARED_KINDS = "arrays", "generator", "function of the context", "batches of several sizes"
SHARED_CASES = [
    *(("dense", kind) for kind in SHARED_KINDS),
    ("mixed", "dataset of unknown length"),
    ("embedding", "batches of several sizes"),
    ("whole batch", "batches of several sizes"),
]


def run(strategy, cases=CASES, eager=False):
    """The results of every case, by "model/kind/what"; with `eager` op by op, which is cheapest in one process."""
    found, models = {}, {}
    for name, kind in cases:
        if strategy.num_replicas_in_sync == 1 and kind in SHARED_OUT:
            continue
        layers, loss, x = MODELS[name]
        if name not in models:
            model = make_model(layers, strategy, loss, eager)
            models[name] = model, model.get_weights()
        values = results(*models[name], x(), KINDS[kind], strategy, kind in WITHOUT_END)
        found.update({f"{name}/{kind}/{what}": np.asarray(value) for what, value in values.items()})
    return found


def differences(found, expected, tolerance):
    """The names of the results that do not match one device."""
    wrong = []
    for name, value in found.items():
        model, kind, what = name.split("/")
        right = expected[f"{model}/arrays/{what}" if kind in SHARED_OUT else name]
        if value.shape != right.shape or not np.allclose(value, right, rtol=tolerance, atol=tolerance):
            wrong.append(name)
    return wrong


if __name__ == "__main__":
    np.savez(f"{sys.argv[1]}/worker-{worker_index()}.npz", **run(auto_strategy(), globals()[sys.argv[2]]))
