"""Custom steps with computation across samples, on uneven replicas, match a single device."""

import keras
import pytest
import tensorflow as tf
from keras import ops
from parity import Balanced, OfCall, assert_parity

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


class Net(unisono.Model):
    """A custom `train_step`: `loss_of` computes the loss, `changed` transforms the gradients, `logged` makes logs."""

    def __init__(
        self, loss_of=squares, changed=lambda gradients: gradients, logged=lambda *_: {}, between=L.Identity
    ):
        super().__init__()
        self.first, self.between, self.last = L.Dense(6, activation="tanh"), between(), L.Dense(2)
        self.loss_of, self.changed, self.logged = loss_of, changed, logged
        self.tracked = keras.metrics.Mean(name="tracked")

    @property
    def metrics(self):
        return [self.tracked]

    def call(self, x, training=False):
        return self.last(self.between(self.first(x), training=training))

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
        self.count = self.add_weight((), "zeros", "int32", trainable=False, name="count")
        self.sums = [self.add_weight(v.shape, "zeros", trainable=False) for v in self.trainable_variables]
        super().build(shape)

    def apply_sums(self):
        sums = [v.value for v in self.sums]
        self.optimizer.apply_gradients(zip(sums, self.trainable_variables))
        for variable in (self.count, *self.sums):
            variable.assign(ops.zeros_like(variable))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(self, x, y, True)
        for v, gradient in zip(self.sums, tape.gradient(loss, self.trainable_variables)):
            v.assign_add(gradient / 2)
        self.count.assign_add(1)
        tf.cond(tf.equal(self.count.value, 2), self.apply_sums, lambda: None)
        self.tracked.update_state(loss)
        return {"tracked": self.tracked.result()}


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
    "sparse": Embeds,
    "bounded": Bounded,
}


@pytest.mark.short("minimized-2", "masked mean-2", "contrastive-2", "bounded-3")
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("name", STEPS)
def test_custom_step_matches_one_device(name, replicas):
    assert_parity(STEPS[name], replicas)


@pytest.mark.long
@pytest.mark.parametrize("name", ["masked mean", "contrastive"])
def test_eager_custom_step_matches_one_device(name):
    assert_parity(STEPS[name], 3, run_eagerly=True)


@pytest.mark.short("3-Python code", "2-branch")
@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Net(with_python_code), "PyFunc"),
        (AccumulatesInBranch, "an optimizer is called in a branch"),
    ],
    ids=["Python code", "branch"],
)
@pytest.mark.parametrize("replicas", [2, 3])
def test_step_that_cannot_be_partitioned_runs_on_one_replica_and_says_why(make, reason, replicas):
    assert_parity(make, replicas, reason)
