"""Every kind of input x strategies x {fit, evaluate, predict}, even and uneven, matches arrays on a single device."""

import functools

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from helpers import Batches, Iterable, mirrored

import unisono

pytestmark = pytest.mark.slow

# One float32 rounding for each of the few sums over replicas; the values are of order one.
TOLERANCE = 2e-5
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(24, 3)).astype("float32")
Y = RANDOM.integers(0, 3, 24)
W = RANDOM.uniform(0.5, 2, 24).astype("float32")
# Batches of 6 are even on three replicas; 5 samples are uneven, and with the last batch of 2 one replica has none.
SIZES = {"six": (18, 6), "five": (17, 5)}
IN_FIVES = ("arrays", "dataset", "generator")  # in memory, from `tf.data`, from Python


def arrays(rows):
    return X[:rows], Y[:rows], W[:rows]


def parts(rows, batch):
    return [tuple(a[i : i + batch] for a in arrays(rows)) for i in range(0, rows, batch)]


def dataset(rows, batch):
    return tf.data.Dataset.from_tensor_slices(arrays(rows)).batch(batch)


def memory_mapped(folder, rows):
    path = folder / f"x{rows}.npy"
    np.save(path, X[:rows])
    return np.load(path, mmap_mode="r"), Y[:rows], W[:rows]


def optioned(data):
    options = tf.data.Options()
    options.deterministic = True
    options.threading.private_threadpool_size = 1
    return data.with_options(options)


# Each returns the arguments (x[, y, sample_weight]) for (samples, batch size, strategy, directory).
KINDS = {
    "arrays": lambda n, b, s, f: arrays(n),
    "not contiguous": lambda n, b, s, f: (np.asfortranarray(X[:n]), np.repeat(Y[:n], 2)[::2], W[:n]),
    "float64, int8": lambda n, b, s, f: (X[:n].astype("float64"), Y[:n].astype("int8"), W[:n]),
    "lists": lambda n, b, s, f: (X[:n].tolist(), Y[:n].tolist(), W[:n].tolist()),
    "pandas": lambda n, b, s, f: (pd.DataFrame(X[:n]), pd.Series(Y[:n]), W[:n]),
    "tensors": lambda n, b, s, f: tuple(tf.constant(a) for a in arrays(n)),
    "numpy api": lambda n, b, s, f: (tf.experimental.numpy.array(X[:n]), Y[:n], W[:n]),
    "memory-mapped": lambda n, b, s, f: memory_mapped(f, n),
    "dataset": lambda n, b, s, f: (dataset(n, b),),
    "dataset with options": lambda n, b, s, f: (optioned(dataset(n, b)),),
    "dataset of unknown length": lambda n, b, s, f: (dataset(n, b).filter(lambda *batch: True),),
    "generator": lambda n, b, s, f: ((batch for batch in parts(n, b)),),
    "iterable": lambda n, b, s, f: (Iterable(parts(n, b)),),
    "PyDataset": lambda n, b, s, f: (Batches(parts(n, b)),),
    "PyDataset with threads": lambda n, b, s, f: (Batches(parts(n, b), workers=2),),
    "distributed dataset": lambda n, b, s, f: (s.experimental_distribute_dataset(dataset(n, b)),),
    "function of the context": lambda n, b, s, f: (
        lambda context: dataset(n, context.get_per_replica_batch_size(b)),
    ),
}


def make_strategy(replicas):
    return tf.distribute.get_strategy() if replicas == 1 else mirrored(replicas)


def make_model(strategy, eager=False):
    keras.utils.set_random_seed(3)
    with strategy.scope():
        hidden = keras.layers.Dense(4, activation="tanh")
        model = unisono.Sequential([keras.Input((3,)), hidden, keras.layers.Dense(3)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        accuracy = {"metrics": ["accuracy"], "weighted_metrics": ["accuracy"]}
        # Choosing the fastest mode would only cost time here.
        way = {"run_eagerly": eager, "jit_compile": False}
        model.compile(unisono.optimizers.SGD(0.1), loss, **accuracy, **way)
    return model, model.get_weights()


def results(model, weights, data, batch):
    """Training loss, trained weights, evaluation and predictions."""
    model.set_weights(weights)

    def fresh(last=3):
        return dict(zip(("x", "y", "sample_weight")[:last], data()))

    keywords = {"verbose": 0, **({"batch_size": batch} if "y" in fresh() else {})}

    history = model.fit(**fresh(), shuffle=False, **keywords).history
    trained = np.concatenate([w.ravel() for w in model.get_weights()])
    evaluated = model.evaluate(**fresh(), **keywords)
    predicted = model.predict(**fresh(1), **keywords)
    return [np.array(history["loss"]), np.array(history["weighted_accuracy"]), trained, evaluated, predicted]


@pytest.fixture(scope="module")
def reference():
    model, weights = make_model(make_strategy(1), eager=True)
    return {
        name: results(model, weights, functools.partial(arrays, rows), batch)
        for name, (rows, batch) in SIZES.items()
    }


@pytest.mark.short("1")
@pytest.mark.parametrize("replicas", [1, 3])
def test_every_kind_gives_the_numbers_of_arrays_on_one_device(replicas, reference, tmp_path):
    strategy = make_strategy(replicas)
    model, weights = make_model(strategy)
    for size, (rows, batch) in SIZES.items():
        for kind, make in KINDS.items():
            if kind == "distributed dataset" and replicas == 1:
                continue  # needs a strategy
            if size == "five" and (kind not in IN_FIVES or replicas == 1):
                continue
            found = results(model, weights, functools.partial(make, rows, batch, strategy, tmp_path), batch)
            for value, right in zip(found, reference[size]):
                np.testing.assert_allclose(
                    value, right, atol=TOLERANCE, err_msg=f"{kind}, {size}, {replicas} replicas"
                )


class Sums(unisono.Model):
    """Logs the sum of the first column."""

    def __init__(self):
        super().__init__()
        self.sum = keras.metrics.Sum(name="sum")

    def train_step(self, data):
        self.sum.update_state(data[0][:, 0])
        return {"sum": self.sum.result()}


AGAIN = [kind for kind in KINDS if kind not in ("generator", "distributed dataset")]


def test_kind_is_read_again_in_every_epoch_and_a_pass_may_last_over_epochs(tmp_path):
    model, sums = Sums(), [X[i : min(i + 5, 17), 0].sum() for i in range(0, 17, 5)]
    model.compile("sgd")
    for kind in AGAIN:
        made = KINDS[kind](17, 5, tf.distribute.get_strategy(), tmp_path)
        given = dict(zip(("x", "y"), made[:2]), batch_size=5) if len(made) > 1 else {"x": made[0]}
        options = {"epochs": 3, "shuffle": False, "verbose": 0}
        found = model.fit(**given, **options).history["sum"]
        np.testing.assert_allclose(found, [sum(sums)] * 3, rtol=1e-5, err_msg=kind)
        found = model.fit(**given, **options, steps_per_epoch=4).history["sum"]  # exactly one pass
        np.testing.assert_allclose(found, [sum(sums)] * 3, rtol=1e-5, err_msg=kind)
        with pytest.warns(UserWarning, match="ran out"):
            found = model.fit(**given, **options, steps_per_epoch=3).history["sum"]
        np.testing.assert_allclose(found, [sum(sums[:3]), sums[3], sum(sums[:3])], rtol=1e-5, err_msg=kind)


class Endless(keras.utils.PyDataset):
    """Batches of 5 samples, drawn by their number."""

    num_batches = None

    def __getitem__(self, number):
        return np.random.default_rng(number).normal(size=(5, 3)), np.zeros((5, 1))


@pytest.mark.parametrize(
    "method, steps", [("fit", "steps_per_epoch"), ("evaluate", "steps"), ("predict", "steps")]
)
def test_pydataset_without_end_is_read_on_in_each_epoch_and_needs_a_number_of_steps(method, steps):
    model = Sums()
    model.compile("sgd")
    expected = [sum(Endless()[number][0][:, 0].sum() for number in epoch) for epoch in ((0, 1, 2), (3, 4, 5))]
    found = model.fit(Endless(), epochs=2, steps_per_epoch=3, shuffle=False, verbose=0).history["sum"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    with pytest.raises(ValueError, match=rf"{steps} \(None\) must be set for a PyDataset without end"):
        getattr(model, method)(Endless(), verbose=0)
