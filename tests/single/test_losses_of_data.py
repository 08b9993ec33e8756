"""Losses across samples with ragged and sparse targets, and sums over random masks."""

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import unisono

ROWS = 10


def of_positives(boxes, predicted):
    """A detection loss: each sample has its own number of boxes, and the sum is divided by their total number."""
    number = tf.cast(tf.size(boxes.flat_values), predicted.dtype)
    return tf.reduce_sum(tf.square(tf.reduce_sum(boxes, axis=1) - predicted[:, 0])) / number


class OfBoxes(unisono.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return of_positives(y, y_pred)


class Ranks(unisono.Model):
    """Compares all samples; its inputs are sparse."""

    def __init__(self):
        super().__init__()
        self.table = self.add_weight(shape=(3, 1), initializer="ones", name="table")

    def call(self, x):
        return ops.matmul(x, self.table)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        wrong = ops.relu(1 - (y_pred - ops.transpose(y_pred)) * ops.sign(y[:, :1] - ops.transpose(y[:, :1])))
        return ops.mean(wrong)


class SumsWhatIsMasked(unisono.Model):
    """A sum over a random mask: about half of the entries, so that the sum is close to the single-device result."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(2)
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        mask = keras.random.uniform(ops.shape(y_pred), seed=self.seeds) < 0.499
        return ops.sum(ops.where(mask, ops.square(y[:, :2] - y_pred), 0.0))


def data(make):
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, 3)).astype("float32")
    if make is OfBoxes:
        lengths = random.integers(1, 4, ROWS)
        boxes = tf.RaggedTensor.from_row_lengths(random.normal(size=lengths.sum()).astype("float32"), lengths)
        return tf.data.Dataset.from_tensor_slices((x, boxes))
    if make is Ranks:
        return tf.data.Dataset.from_tensor_slices((tf.sparse.from_dense(np.maximum(x, 0)), x))
    return tf.data.Dataset.from_tensor_slices((x, x))


def trained(make, strategy, batch=4):
    keras.utils.set_random_seed(1)
    with helpers.scope(strategy):
        model = make()
        model.compile(keras.optimizers.SGD(0.01), jit_compile=False)
    history = model.fit(data(make).batch(batch), epochs=2, verbose=0).history
    return [*model.get_weights()[:1], np.array(history["loss"])]


@pytest.mark.short("3-Ranks", "2-OfBoxes")
@pytest.mark.parametrize("make", [OfBoxes, Ranks])
@pytest.mark.parametrize("replicas", [2, 3])
def test_ragged_and_sparse_data_is_gathered(make, replicas):
    for actual, expected in zip(trained(make, helpers.mirrored(replicas)), trained(make, None)):
        helpers.assert_close(actual, expected, 1e-5)


def test_a_sum_over_places_that_are_drawn_is_a_sum():
    """On two replicas a mean would be half of it; the masks differ, so the values are only close."""
    one, two = (trained(SumsWhatIsMasked, s, batch=ROWS)[1][0] for s in (None, helpers.mirrored(2)))
    assert 0.65 < two / one < 1.5
