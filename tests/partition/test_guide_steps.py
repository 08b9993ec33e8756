"""Custom training steps as guides write them: three uneven replicas, one of them empty at last, against one device."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import FLOAT64, assert_close, mirrored, scope

import unisono
from unisono.trainer.partition import step_partition
from unisono.trainer.partition.traced_step import TracedStep

pytestmark = pytest.mark.usefixtures("float64")
_R = np.random.default_rng(0)
X, X2, T, Y = _R.normal(size=(12, 4)), _R.normal(size=(12, 4)), _R.normal(size=(12, 3)), _R.integers(0, 3, 12)
TOKENS, MASK, IMAGES = _R.integers(1, 7, (12, 6)), _R.random((12, 6)) > 0.6, _R.normal(size=(12, 4, 4, 2))
mean, total = tf.reduce_mean, tf.reduce_sum


def mlp(inputs, outputs):
    return keras.Sequential(
        [keras.Input((inputs,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(outputs)]
    )


class Net(unisono.Model):
    def __init__(self):
        super().__init__()
        self.net = self.made()
        self.set_up()

    def made(self):
        return mlp(4, 3)

    def set_up(self):
        pass

    def loss_of(self, *data):
        raise NotImplementedError

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.loss_of(*data)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": loss, **self.after()}

    def after(self):
        return {}


class SimCLR(Net):
    def loss_of(self, x, x2):
        one, other = (tf.math.l2_normalize(self.net(each), 1) for each in (x, x2))
        logits, labels = tf.matmul(one, other, transpose_b=True) / 0.5, tf.range(tf.shape(x)[0])
        return mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)) + mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.transpose(logits))
        )


class MoCo(Net):
    def set_up(self):
        self.momentum = mlp(4, 3)
        self.momentum.trainable = False
        self.queue = self.add_weight(shape=(16, 3), initializer="random_normal", trainable=False)

    def loss_of(self, x, x2):
        self.keys = tf.math.l2_normalize(self.momentum(x2), 1)
        queries = tf.math.l2_normalize(self.net(x), 1)
        positive = total(queries * self.keys, 1, keepdims=True)
        logits = tf.concat([positive, tf.matmul(queries, self.queue, transpose_b=True)], 1)
        labels = tf.zeros([tf.shape(x)[0]], tf.int32)
        return mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    def after(self):
        self.queue.assign(tf.concat([self.keys, self.queue[: -tf.shape(self.keys)[0]]], 0))
        for old, new in zip(self.momentum.weights, self.net.weights):
            old.assign(0.9 * old + 0.1 * new)
        return {}


class MaskedTokens(Net):
    def set_up(self):
        self.embedding = keras.layers.Embedding(8, 4)
        self.embedding.build((None, 6))

    def loss_of(self, tokens, mask):
        flat = tf.reshape(self.embedding(tf.where(mask, tf.constant(7, tokens.dtype), tokens)), [-1, 4])
        logits = tf.reshape(self.net(flat), [-1, 6, 3])
        labels = tf.boolean_mask(tokens % 3, mask)
        return mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.boolean_mask(logits, mask)))


class Squeezed(Net):
    def loss_of(self, x, t):
        return mean((tf.squeeze(self.net(x)[:, :1]) - t[:, 0]) ** 2)


class Experts(Net):
    def loss_of(self, x, y):
        p = tf.nn.softmax(self.net(x))
        mask = tf.one_hot(tf.argmax(p, -1), 3, dtype=p.dtype)
        balance = total(mean(p, 0) * mean(mask, 0))
        kept = tf.cast(tf.cumsum(mask, 0) * mask <= 2, p.dtype) * mask
        return mean(total(kept * p, 1) * tf.cast(y, p.dtype)) + 0.1 * balance


class PolicyGradient(Net):
    def loss_of(self, x, y, t):
        advantage = (t[:, 0] - mean(t[:, 0])) / (tf.math.reduce_std(t[:, 0]) + 1e-8)
        log_p = tf.gather(tf.nn.log_softmax(self.net(x)), y, batch_dims=1)
        ratio = tf.exp(log_p - t[:, 1])
        return -mean(tf.minimum(ratio * advantage, tf.where(advantage > 0, 1.2 * advantage, 0.8 * advantage)))


class Count(keras.metrics.Metric):
    def __init__(self, **options):
        super().__init__(**options)
        self.count = self.add_variable(shape=(), initializer="zeros", dtype="int32")
        self.largest = self.add_variable(shape=(), initializer="zeros")

    def update_state(self, values):
        self.count.assign_add(tf.shape(values)[0])
        self.largest.assign(tf.maximum(self.largest, tf.reduce_max(values)))

    def result(self):
        return {"count": self.count, "largest": self.largest}


class ResultsAreVariables(Net):
    def set_up(self):
        self.counted = Count(name="counted")

    def loss_of(self, x, t):
        z = self.net(x)
        self.counted.update_state(z)
        return mean((z - t) ** 2)

    def after(self):
        return self.counted.result()


class PerSampleGradients(Net):
    def train_step(self, data):
        x, t = data
        with tf.GradientTape() as tape:
            losses = mean((self.net(x) - t) ** 2, 1)
        jacobians = tape.jacobian(losses, self.trainable_variables)
        norms = tf.sqrt(tf.add_n([total(j**2, range(1, len(j.shape))) for j in jacobians]))
        factor = 1.0 / tf.maximum(norms, tf.ones_like(norms))
        gradients = [mean(j * tf.reshape(factor, [-1] + [1] * (len(j.shape) - 1)), 0) for j in jacobians]
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        return {"loss": mean(losses), "largest": tf.reduce_max(norms)}


STEPS = [
    (SimCLR, X, X2), (MoCo, X, X2), (MaskedTokens, TOKENS, MASK), (Squeezed, X, T), (Experts, X, Y),
    (PolicyGradient, X, Y, T), (ResultsAreVariables, X, T), (PerSampleGradients, X, T),
]  # fmt: skip


def _fitted(kind, strategy, batches):
    keras.utils.set_random_seed(1)
    with scope(strategy):
        model = kind()
        model.compile(keras.optimizers.SGD(0.1), jit_compile=False)
    history = model.fit(batches, epochs=2, verbose=0).history
    return history, [w.numpy() for w in model.weights]


@pytest.mark.parametrize("kind, data", [(kind, data) for kind, *data in STEPS])
def test_step_is_partitioned_and_matches_one_device(kind, data, monkeypatch):
    steps = []

    def traced(*arguments):
        steps.append(TracedStep(*arguments))
        return steps[-1]

    monkeypatch.setattr(step_partition, "TracedStep", traced)
    batches = tf.data.Dataset.from_tensor_slices(tuple(data)).batch(5)
    history, weights = _fitted(kind, mirrored(3), batches)
    expected_history, expected = _fitted(kind, None, batches)
    assert_close(history, expected_history, 10 * FLOAT64, "logs")
    assert_close(weights, expected, 10 * FLOAT64, "weights")
    assert steps


class Normalized(Net):
    def made(self):
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((4, 4, 2)),
                layers.Conv2D(2, 3),
                layers.BatchNormalization(),
                layers.Flatten(),
                layers.Dense(3),
            ]
        )

    def loss_of(self, x, t):
        return mean((self.net(x, training=True) - t) ** 2)

    def after(self):
        moving = self.net.layers[1].moving_mean
        return {"moving": mean(moving), "first": moving[0], "all": tf.norm(moving + 1.0)}


def test_replica_without_samples_adds_nothing_to_batch_statistics():
    batches = tf.data.Dataset.from_tensor_slices((IMAGES[:2], T[:2])).batch(2)
    assert_close(
        _fitted(Normalized, mirrored(3), batches), _fitted(Normalized, mirrored(2), batches), FLOAT64
    )


def test_logs_of_batch_statistics_are_those_that_are_written():
    batches = tf.data.Dataset.from_tensor_slices((IMAGES, T)).batch(5)
    logs, weights = _fitted(Normalized, mirrored(3), batches)
    moving = weights[4]
    found = [logs[name][-1] for name in ("moving", "first", "all")]
    assert_close(found, [moving.mean(), moving[0], np.linalg.norm(moving + 1.0)], FLOAT64)
