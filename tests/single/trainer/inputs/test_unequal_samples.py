"""Arrays of different lengths in a batch train as with plain Keras, or raise a one-sentence error."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import Batches, GradientsOfItsOwn, mirrored, scope

import unisono

pytestmark = pytest.mark.usefixtures("float64")
RNG = np.random.default_rng(0)
X, Y, MANY = RNG.normal(size=(10, 5)), RNG.normal(size=(10, 2)), RNG.normal(size=(30, 5))


def half_supervised(package, reduce):
    """A custom step on `((x, y), many)`, as in FixMatch: a supervised loss, and one for unlabelled samples."""

    class HalfSupervised(GradientsOfItsOwn, package.Sequential):
        def __init__(self):
            super().__init__([keras.Input((5,)), keras.layers.Dense(2)])
            self.error = keras.metrics.Mean(name="error")

        def loss_of(self, labelled, many):
            x, y = labelled
            return reduce((y - self(x)) ** 2) + reduce(tf.abs(self(many) - self(0.8 * many)))

        def logs_of(self, loss, x):
            self.error.update_state(loss)
            return {"now": loss, "error": self.error.result()}

        def test_step(self, data):
            return {"now": self.loss_of(*data)}

        def predict_step(self, data):
            (x, _), many = data
            return self(x), self(many)

    return HalfSupervised()


def zipped(few, many, drop):
    """3 steps; the last one has fewer samples unless the remainder is dropped."""
    labelled = tf.data.Dataset.from_tensor_slices((X, Y)).batch(few, drop_remainder=drop)
    return tf.data.Dataset.zip((labelled, tf.data.Dataset.from_tensor_slices(MANY).batch(many, drop)))


def items(few, many, drop):
    return Batches(list(zipped(few, many, drop).as_numpy_iterator()))


def trained(make, data, strategy=None):
    keras.utils.set_random_seed(1)
    with scope(strategy):
        model = make()
        ours = isinstance(model, unisono.Model)
        model.compile(keras.optimizers.SGD(0.01, momentum=0.5), run_eagerly=not ours)
    history = model.fit(data, epochs=2, shuffle=False, verbose=0).history
    scores = model.evaluate(data, verbose=0, return_dict=True)
    return history, scores, model.get_weights(), model.predict(data, verbose=0)


def equal(found, expected):
    for mine, theirs in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.short("last of fewer-items-reduce_mean-1")
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("reduce", [tf.reduce_mean, tf.reduce_sum])
@pytest.mark.parametrize("given", [zipped, items])
@pytest.mark.parametrize(
    "rows", [(4, 12, False), (5, 15, True), (3, 7, False)], ids=["last of fewer", "known", "no divisor"]
)
def test_labelled_samples_next_to_others_train_as_in_keras(rows, given, reduce, replicas):
    expected = trained(lambda: half_supervised(keras, reduce), zipped(*rows))
    strategy = mirrored(replicas) if replicas > 1 else None
    equal(trained(lambda: half_supervised(unisono, reduce), given(*rows), strategy), expected)


def graphs(package):
    """Nodes that gather values of their graph; one target per node."""

    class Nodes(package.Model):
        def __init__(self):
            super().__init__()
            self.of_graph, self.of_node = keras.layers.Dense(4), keras.layers.Dense(4)
            self.out = keras.layers.Dense(1)

        def call(self, inputs):
            context = tf.gather(self.of_graph(inputs["graph"]), inputs["owner"])
            return self.out(tf.tanh(context + self.of_node(inputs["nodes"])))

    return Nodes()


def batches_of_graphs():
    for sizes in (3, 2, 4), (1, 5), (2, 2, 2, 1):
        owner = np.repeat(np.arange(len(sizes)), sizes)
        inputs = {"graph": X[: len(sizes)], "nodes": MANY[: sum(sizes)], "owner": owner}
        yield inputs, MANY[: sum(sizes), :1] * X[owner, :1]


def dataset_of_graphs(take=3):
    parts = [tf.data.Dataset.from_tensors(batch) for batch in batches_of_graphs()][:take]
    data = parts[0]
    for part in parts[1:]:
        data = data.concatenate(part)
    return data


GRAPHS = {
    "dataset": dataset_of_graphs,
    "dataset of one size": lambda: dataset_of_graphs(1),
    "PyDataset": lambda: Batches(list(batches_of_graphs())),
    "generator": batches_of_graphs,
}


def fitted(make, data, strategy=None):
    keras.utils.set_random_seed(1)
    with scope(strategy):
        model = make()
        model.compile("sgd", "mse", run_eagerly=not isinstance(model, unisono.Model))
    return model.fit(data, shuffle=False, verbose=0).history, model.get_weights()


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.short("dataset of one size")
def test_graphs_with_targets_of_their_nodes_train_on_one_device(kind):
    expected = fitted(lambda: graphs(keras), GRAPHS[kind if "one" in kind else "dataset"]())
    equal(fitted(lambda: graphs(unisono), GRAPHS[kind]()), expected)


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.short("PyDataset", "dataset of one size", "generator")
def test_graphs_are_rejected_on_several_replicas(kind):
    counts = r"(?:\[9\] \[3\]|9 samples in .* 3 in)"
    named = rf"`x.*nodes.*` must have as many samples as `x.*graph.*2 replicas.*{counts}"
    message = rf"{named}|samples.*\b3\b.*\b9\b"
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=message):
        fitted(lambda: graphs(unisono), GRAPHS[kind](), mirrored(2))


@pytest.mark.long
def test_predictions_for_graphs_are_rejected_on_several_replicas():
    model = graphs(unisono)
    model.predict(dataset_of_graphs(), verbose=0)
    with mirrored(2).scope():
        model = graphs(unisono)
    errors = tf.errors.InvalidArgumentError, ValueError  # an analysed batch has a known size
    with pytest.raises(errors, match=r"x.*nodes.*must have as many samples as"):
        model.predict(dataset_of_graphs(), verbose=0)
