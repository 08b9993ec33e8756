"""Custom steps with computation across samples, on uneven replicas, match a single device."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import TwoLayers
from keras import ops
from parity import Balanced, OfCall, X, assert_parity, trained

import unisono

pytestmark = pytest.mark.usefixtures("float64")
L = keras.layers


def squares(model, x, y, training):
    return tf.reduce_mean((y - model(x, training=training)) ** 2)


def masked_mean(model, x, y, training):
    """A sum over valid entries, divided by their count."""
    valid = tf.cast(x[:, 0] > -0.5, x.dtype) + 0.01
    errors = tf.reduce_sum((y - model(x, training=training)) ** 2, 1)
    return tf.reduce_sum(errors * valid) / tf.reduce_sum(valid)


def worst_row(model, x, y, training):
    errors = tf.reduce_sum((y - model(x, training=training)) ** 2, 1)
    return tf.sqrt(tf.reduce_mean(errors)) + 0.5 * tf.reduce_max(errors) - 0.1 * tf.reduce_min(errors)


def contrastive(model, x, y, training):
    z, y = (tf.math.l2_normalize(each, 1) for each in (model(x, training=training), y))
    places, logits = tf.range(tf.shape(x)[0]), tf.matmul(z, y, transpose_b=True)
    return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(places, logits, from_logits=True))


def with_python_code(model, x, y, training):
    """Depends on Python code, which must run in real steps only."""
    factor = tf.numpy_function(lambda a: a, [tf.constant(0.5, tf.float64)], tf.float64)
    factor.set_shape([])
    return factor * squares(model, x, y, training)


def norms(loss, gradients):
    """Functions of gradients, and of means."""
    norm = tf.linalg.global_norm(gradients)
    return {"norm": norm, "perplexity": tf.exp(loss), "inner": {"rmse": tf.sqrt(loss)}}


class Net(TwoLayers):
    """A custom `train_step`: `loss_of` computes the loss, `changed` transforms the gradients, `logged` makes logs."""

    def __init__(
        self, loss_of=squares, changed=lambda found: found, logged=lambda *_: {}, between=L.Identity
    ):
        super().__init__(between)
        self.loss_of, self.changed, self.logged = loss_of, changed, logged
        self.tracked = keras.metrics.Mean(name="tracked")

    @property
    def metrics(self):
        return [self.tracked]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(self, x, y, True)
        weights = self.trainable_variables
        gradients = self.changed(tape.gradient(loss, weights))
        self.optimizer.apply_gradients(zip(gradients, weights))
        self.tracked.update_state(loss)
        return {"tracked": self.tracked.result(), **self.logged(loss, gradients)}

    def test_step(self, data):
        x, y = data
        self.tracked.update_state(self.loss_of(self, x, y, False))
        return {"tracked": self.tracked.result()}


class Minimized(Net):
    """The optimizer computes the gradient, and a metric gets per-sample values."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(self, x, y, True)
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        self.tracked.update_state(x[:, 0])
        return {"tracked": self.tracked.result(), "error": loss}


class AccumulatesInBranch(Net):
    """Applies the accumulated gradients of two steps in a branch."""

    def build(self, shape):
        for layer in (self.first, self.last):
            layer.build((None, 6))
        self.count = self.add_weight((), "zeros", "int32", trainable=False)
        self.sums = [self.add_weight(v.shape, "zeros", trainable=False) for v in self.trainable_variables]
        super().build(shape)

    def apply_sums(self):
        self.optimizer.apply_gradients(zip([v.value for v in self.sums], self.trainable_variables))
        for variable in (self.count, *self.sums):
            variable.assign(ops.zeros_like(variable))

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.loss_of(self, *data, True)
        for v, gradient in zip(self.sums, tape.gradient(loss, self.trainable_variables)):
            v.assign_add(gradient / 2)
        self.count.assign_add(1)
        tf.cond(tf.equal(self.count.value, 2), self.apply_sums, lambda: None)
        return {"error": loss}


class Contrasted(unisono.Model):
    """Each replica compares its samples with all others, as image-text contrastive losses do."""

    def __init__(self):
        super().__init__()
        self.images, self.texts = L.Dense(4), L.Dense(4)
        self.temperature = self.add_weight(shape=(), initializer="ones")

    def call(self, x):
        return self.images(x)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            both = images, texts = self.images(data[0]), self.texts(data[1])
            every = unisono.distribute.gather(both)[::-1]
            logits = [tf.matmul(own, each, transpose_b=True) for own, each in zip(both, every)]
            mine = self.temperature * tf.reduce_sum(images * texts, -1)
            loss = tf.add_n(
                [tf.reduce_mean(tf.reduce_logsumexp(self.temperature * part, -1) - mine) for part in logits]
            )
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {"error": loss}

    def test_step(self, data):
        return {"error": tf.reduce_mean(self(data[0]))}


class OfBoxes(OfCall):
    """A detection loss: each sample has its own number of boxes, and the sum is divided by their total number."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        number = tf.cast(tf.size(y.flat_values), y_pred.dtype)
        return tf.reduce_sum(tf.square(tf.reduce_sum(y, axis=1) - y_pred[:, 0])) / number


class Ranks(unisono.Model):
    """Compares all samples; its inputs are sparse."""

    def __init__(self):
        super().__init__()
        self.table = self.add_weight(shape=(6, 1), initializer="ones", name="table")

    def call(self, x):
        return ops.matmul(x, self.table)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        wrong = ops.relu(1 - (y_pred - ops.transpose(y_pred)) * ops.sign(y[:, :1] - ops.transpose(y[:, :1])))
        return ops.mean(wrong)


class Embeds(Net):
    """The gradient of an embedding table is sparse."""

    def __init__(self):
        super().__init__(changed=clipped, between=lambda: L.Embedding(9, 3))

    def call(self, x, training=False):
        numbers = tf.cast(tf.abs(x) * 3, tf.int32) % 9
        return self.last(tf.reshape(self.between(numbers), [-1, 18]))


class Bounded(OfCall):
    """A custom step that updates a bounded loss weight, which the next step uses."""

    def __init__(self):
        super().__init__(mix=ops.tanh)
        self.weight = keras.Variable(0.2, trainable=False, dtype="float64", name="weight")

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            error = ops.mean(ops.square(self(x) - y))
            loss = self.weight * error
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.weight.assign(tf.clip_by_value(self.weight + 0.3 * (error - 1.6), 0.1, 1.0))
        return {"loss": loss, "weight": self.weight.value}


def clipped(gradients):
    return tf.clip_by_global_norm(gradients, 0.1)[0]


def clipped_later(gradients):
    """The first steps do not reach the limit."""
    return [tf.clip_by_norm(g, 0.7) for g in gradients]


STEPS = {
    "masked mean": lambda: Net(masked_mean, clipped),
    "minimized": lambda: Minimized(masked_mean),
    "worst sample": lambda: Net(worst_row, clipped_later),
    "norms": lambda: Net(logged=norms),
    "an added loss": lambda: Net(
        lambda model, *data: squares(model, *data) + tf.add_n(model.losses), between=Balanced
    ),
    "contrastive": lambda: Net(contrastive),
    "contrastive with statistics": lambda: Net(
        contrastive, between=lambda: L.BatchNormalization(synchronized=True)
    ),
    "sparse gradients": Embeds,
    "contrasted with all": Contrasted,
    "bounded": Bounded,
}


@pytest.mark.short("bounded-3")
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("name", STEPS)
def test_custom_step_matches_one_device(name, replicas):
    assert_parity(STEPS[name], replicas)


LENGTHS = [1, 2, 3] * 5
BOXES = tf.RaggedTensor.from_row_lengths(np.linspace(-1.0, 2.0, sum(LENGTHS)), LENGTHS)


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "data"),
    [(OfBoxes, {"y": BOXES}), (Ranks, {"x": tf.sparse.from_dense(np.maximum(X, 0)), "y": X})],
    ids=["OfBoxes", "Ranks"],
)
@pytest.mark.parametrize("replicas", [2, 3])
def test_step_with_ragged_or_sparse_data_matches_one_device(make, data, replicas):
    assert_parity(make, replicas, loss=None, **data)


@pytest.mark.long
@pytest.mark.parametrize("name", ["masked mean", "contrastive"])
def test_eager_custom_step_matches_one_device(name):
    assert_parity(STEPS[name], 3, run_eagerly=True)


@pytest.mark.short("2-branch")
@pytest.mark.parametrize(
    ("make", "reason"),
    [(lambda: Net(with_python_code), "PyFunc"), (AccumulatesInBranch, "an optimizer is called in a branch")],
    ids=["Python code", "branch"],
)
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.falls_back
def test_step_that_cannot_be_partitioned_runs_on_one_replica_and_says_why(make, reason, replicas):
    assert_parity(make, replicas, reason)


class SumsWhatIsMasked(OfCall):
    """A sum over a random mask: about half of the entries, so that the sum is close to the single-device result."""

    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        mask = keras.random.uniform(ops.shape(y_pred), seed=self.seeds) < 0.499
        return ops.sum(ops.where(mask, ops.square(y - y_pred), 0.0))


@pytest.mark.long
def test_a_sum_over_places_that_are_drawn_is_a_sum():
    """On two replicas a mean would be half of it; the masks differ, so the values are only close."""
    one, two = (trained(SumsWhatIsMasked, replicas, batch=15)[0][2]["loss"][0] for replicas in (1, 2))
    assert 0.65 < two / one < 1.5
