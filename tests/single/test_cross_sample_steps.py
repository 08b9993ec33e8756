"""Steps with computation across samples, on uneven replicas, match a single device."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import unisono
from tests.helpers import FLOAT64, assert_close, mirrored

pytestmark = pytest.mark.usefixtures("float64")
L = keras.layers
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(23, 5)), RNG.normal(size=(23, 2))
BATCH = 7  # uneven on two replicas; the last batch has 2 samples


class Net(unisono.Model):
    """Has a custom `train_step`: `loss_of` computes the loss, `changed` transforms the gradients."""

    def __init__(self, between=L.Identity):
        super().__init__()
        self.first, self.between, self.last = L.Dense(6, activation="tanh"), between(), L.Dense(2)
        self.tracked = keras.metrics.Mean(name="tracked")

    @property
    def metrics(self):
        return [self.tracked]

    def call(self, x, training=False):
        return self.last(self.between(self.first(x), training=training))

    def loss_of(self, x, y, training):
        return tf.reduce_mean((y - self(x, training=training)) ** 2)

    def changed(self, gradients):
        return gradients

    def logged(self, loss, gradients):
        return {}

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y, True)
        weights = self.trainable_variables
        gradients = self.changed(tape.gradient(loss, weights))
        self.optimizer.apply_gradients(zip(gradients, weights))
        self.tracked.update_state(loss)
        return {"tracked": self.tracked.result(), **self.logged(loss, gradients)}

    def test_step(self, data):
        x, y = data
        self.tracked.update_state(self.loss_of(x, y, False))
        return {"tracked": self.tracked.result()}


class MaskedMean(Net):
    """A sum over valid entries, divided by their count."""

    def loss_of(self, x, y, training):
        valid = tf.cast(x[:, 0] > -0.5, x.dtype) + 0.01
        errors = tf.reduce_sum((y - self(x, training=training)) ** 2, 1)
        return tf.reduce_sum(errors * valid) / tf.reduce_sum(valid)


class Minimized(MaskedMean):
    """The optimizer computes the gradient, and a metric gets per-sample values."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(x, y, True)
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        self.tracked.update_state(x[:, 0])
        return {"tracked": self.tracked.result(), "error": loss}


class RootOfMean(Net):
    """Divides by the number of samples that the step gets."""

    def loss_of(self, x, y, training):
        total = tf.reduce_sum((y - self(x, training=training)) ** 2)
        return tf.sqrt(total / tf.cast(tf.shape(x)[0], total.dtype))


class SumAndPenalty(Net):
    def loss_of(self, x, y, training):
        penalty = tf.add_n([tf.reduce_sum(tf.square(v)) for v in self.trainable_variables])
        return 0.1 * tf.reduce_sum((y - self(x, training=training)) ** 2) + 0.01 * penalty


class WorstRow(Net):
    def loss_of(self, x, y, training):
        errors = tf.reduce_sum((y - self(x, training=training)) ** 2, 1)
        return tf.reduce_mean(errors) + 0.5 * tf.reduce_max(errors) - 0.1 * tf.reduce_min(errors)


class LearnedWeights(Net):
    """Weighs two losses with variables, outside of per-sample computation."""

    def __init__(self):
        super().__init__()
        self.scales = [self.add_weight((), "ones", name=f"scale_{i}") for i in range(2)]

    def loss_of(self, x, y, training):
        losses = MaskedMean.loss_of(self, x, y, training), Net.loss_of(self, x, y, training)
        return tf.add_n([tf.exp(-s.value) * loss + s.value for s, loss in zip(self.scales, losses)])


class Balanced(L.Layer):
    """A mixture of experts, with a load-balancing loss."""

    def build(self, shape):
        self.gate, self.experts = L.Dense(3, activation="softmax"), [L.Dense(6) for _ in range(3)]
        super().build(shape)

    def call(self, x):
        gate = self.gate(x)
        chosen = ops.cast(ops.one_hot(ops.argmax(gate, 1), 3), gate.dtype)
        self.add_loss(0.3 * ops.sum(ops.mean(chosen, 0) * ops.mean(gate, 0)))
        return sum(gate[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


class WithAddedLosses(Net):
    def __init__(self):
        super().__init__(Balanced)

    def loss_of(self, x, y, training):
        return Net.loss_of(self, x, y, training) + tf.add_n(self.losses)


class Clipped(Net):
    def changed(self, gradients):
        return tf.clip_by_global_norm(gradients, 0.1)[0]


class ClippedLater(Net):
    """The first steps do not reach the limit."""

    def changed(self, gradients):
        return [tf.clip_by_norm(g, 0.7) for g in gradients]


class ClippedMaskedMean(MaskedMean):
    changed = Clipped.changed


class TracksNorms(Net):
    """Logs functions of gradients, and of means, sums and maxima."""

    def logged(self, loss, gradients):
        norm = tf.linalg.global_norm(gradients)
        return {"norm": norm, "perplexity": tf.exp(loss), "inner": {"rmse": tf.sqrt(loss)}}


class AccumulatesInBranch(Net):
    """Applies the accumulated gradients of two steps in a branch."""

    def build(self, shape):
        for layer, width in ((self.first, 5), (self.last, 6)):
            layer.build((None, width))
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
            loss = self.loss_of(x, y, True)
        for v, gradient in zip(self.sums, tape.gradient(loss, self.trainable_variables)):
            v.assign_add(gradient / 2)
        self.count.assign_add(1)
        tf.cond(tf.equal(self.count.value, 2), self.apply_sums, lambda: None)
        self.tracked.update_state(loss)
        return {"tracked": self.tracked.result()}


class Embeds(Clipped):
    """The gradient of an embedding table is sparse."""

    def __init__(self):
        super().__init__(lambda: L.Embedding(9, 3))

    def call(self, x, training=False):
        numbers = tf.cast(tf.abs(x) * 3, tf.int32) % 9
        return self.last(tf.reshape(self.between(numbers), [-1, 15]))


class Contrastive(Net):
    def loss_of(self, x, y, training):
        z, y = (tf.math.l2_normalize(each, 1) for each in (self(x, training=training), y))
        places = tf.range(tf.shape(x)[0])
        logits = tf.matmul(z, y, transpose_b=True)
        return tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(places, logits, from_logits=True))


class ContrastiveWithStatistics(Contrastive):
    def __init__(self):
        super().__init__(lambda: L.BatchNormalization(synchronized=True))


class Queue(Net):
    """Compares with stored outputs of earlier batches."""

    def __init__(self):
        super().__init__()
        self.queue = self.add_weight((6, 2), "ones", trainable=False, name="queue")

    def loss_of(self, x, y, training):
        z = self(x, training=training)
        loss = tf.reduce_mean(tf.reduce_logsumexp(tf.matmul(z, self.queue.value, transpose_b=True), 1))
        if training:
            self.queue.assign(tf.concat([tf.stop_gradient(z), self.queue.value], 0)[:6])
        return loss - tf.reduce_mean(z * y)


class HasSideEffects(Net):
    """The loss depends on Python code, which must run in real steps only."""

    def loss_of(self, x, y, training):
        factor = tf.numpy_function(lambda a: a, [tf.constant(0.5, tf.float64)], tf.float64)
        factor.set_shape([])
        return factor * Net.loss_of(self, x, y, training)


def trained(make, replicas, **settings):
    """Weights, logs of training and evaluation, and warnings."""
    keras.utils.set_random_seed(2)
    with mirrored(replicas).scope() if replicas > 1 else tf.distribute.get_strategy().scope():
        model = make()
        model.compile(unisono.optimizers.SGD(0.05, momentum=0.9), **settings)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        history = model.fit(X, Y, batch_size=BATCH, epochs=2, shuffle=False, verbose=0).history
        evaluated = model.evaluate(X, Y, batch_size=BATCH, verbose=0, return_dict=True)
    said = [str(each.message) for each in caught if "one replica" in str(each.message)]
    return (model.get_weights(), history, evaluated), said


SHARED = [
    MaskedMean,
    Minimized,
    RootOfMean,
    SumAndPenalty,
    WorstRow,
    LearnedWeights,
    WithAddedLosses,
    Clipped,
    ClippedLater,
    ClippedMaskedMean,
    TracksNorms,
    Embeds,
    Contrastive,
    ContrastiveWithStatistics,
    Queue,
]
"""All replicas share the work of these, and nothing is warned of."""


@pytest.mark.short("LearnedWeights", "Queue", "MaskedMean", "Minimized", "Contrastive")
@pytest.mark.parametrize("make", SHARED)
def test_partitioned_step_matches_one_device(make):
    wanted, _ = trained(make, 1)
    found, said = trained(make, 2)
    assert_close(found, wanted, FLOAT64)
    assert said == []


@pytest.mark.short("3-Python code", "2-branch")
@pytest.mark.parametrize(
    ("make", "reason"),
    [(HasSideEffects, "PyFunc"), (AccumulatesInBranch, "an optimizer is called in a branch")],
    ids=["Python code", "branch"],
)
@pytest.mark.parametrize("replicas", [2, 3])
def test_step_that_cannot_be_partitioned_runs_on_one_replica_and_says_why(make, reason, replicas):
    wanted, _ = trained(make, 1)
    found, said = trained(make, replicas)
    assert_close(found, wanted, FLOAT64)
    assert len(said) == 1 and reason in said[0]


@pytest.mark.long
def test_eager_step_matches_one_device():
    for make in (Clipped, MaskedMean, Contrastive, Queue):
        wanted, _ = trained(make, 1, run_eagerly=True)
        found, said = trained(make, 3, run_eagerly=True)
        assert_close(found, wanted, FLOAT64)
        assert said == []


@pytest.mark.long
def test_added_loss_of_the_standard_step_matches_one_device():
    def make():
        return unisono.Sequential([keras.Input((5,)), L.Dense(6), Balanced(), L.Dense(2)])

    wanted, _ = trained(make, 1, loss="mse", metrics=["mae"])
    found, said = trained(make, 2, loss="mse", metrics=["mae"])
    assert_close(found, wanted, FLOAT64)
    assert said == []


class Views(unisono.Model):
    """Encodes two views of each sample at once, one after the other."""

    def __init__(self):
        super().__init__()
        self.encoder = L.Dense(4)

    def call(self, x, training=False):
        return self.encoder(ops.concatenate([x, 0.9 * x + 0.1], axis=0))


@pytest.mark.short("True")
@pytest.mark.parametrize("eager", [False, True])
def test_outputs_in_another_order_match_one_device(eager):
    def views(y, z):
        z = z / ops.norm(z, axis=1, keepdims=True)
        rows = ops.shape(z)[0] // 2
        logits = ops.matmul(z[:rows], ops.transpose(z[rows:]))
        return ops.mean(
            keras.losses.sparse_categorical_crossentropy(ops.arange(rows), logits, from_logits=True)
        )

    wanted, _ = trained(Views, 1, loss=views)
    found, said = trained(Views, 3, loss=views, run_eagerly=eager)
    assert_close(found, wanted, FLOAT64)
    assert said == []
