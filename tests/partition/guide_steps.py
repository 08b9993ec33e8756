"""Custom training steps from keras.io's examples and TensorFlow's guides, with tiny models.

`STEPS` has for each its data and the communication of its partitioned form: how many tensors are gathered, and how many
are reduced, including logs. Gradients are not counted: optimizers aggregate them.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from helpers import descend

import unisono

_R = np.random.default_rng(0)
N = 12
X, X2, T, NOISE = (_R.normal(size=(N, width)) for width in (4, 4, 3, 2))
Y, ACTIONS, REWARDS = _R.integers(0, 3, N), _R.integers(0, 3, N).astype("int32"), _R.normal(size=N)
TOKENS, MASK, IMAGES = _R.integers(1, 7, (N, 6)), _R.random((N, 6)) > 0.6, _R.normal(size=(N, 4, 4, 2))
UNIFORM, TIMES = _R.random((N, 1)), _R.integers(0, 4, N)
mean, total, layers = tf.reduce_mean, tf.reduce_sum, keras.layers


@dataclasses.dataclass
class Step:
    """A step, its data, and the communication of its partitioned form; `reduced` None: it is not partitioned."""

    kind: type
    data: tuple[Any, ...]
    gathered: int
    reduced: int | None


STEPS: list[Step] = []


def step(*data, gathered=0, reduced: int | None = 0):
    def enter(kind):
        STEPS.append(Step(kind, data, gathered, reduced))
        return kind

    return enter


def mlp(inputs, outputs, last=None):
    return keras.Sequential(
        [keras.Input((inputs,)), layers.Dense(5, "tanh"), layers.Dense(outputs, activation=last)]
    )


def frozen(inputs, outputs):
    net = mlp(inputs, outputs)
    net.trainable = False
    return net


def follow(target, source, rate):
    """Moves weights towards others."""
    for old, new in zip(target.weights, source.weights):
        old.assign((1 - rate) * old + rate * new)


def cross_entropy(labels, logits):
    return mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))


def unit(z):
    return tf.math.l2_normalize(z, 1)


def size_of(x):
    return tf.shape(x)[0]


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
        loss = descend(lambda: self.loss_of(*data), self.optimizer, self.trainable_variables)
        return {"loss": loss, **self.after()}

    def after(self):
        return {}


class TwoOptimizers(Net):
    def set_up(self):
        self.critic = mlp(3, 1)
        self.first, self.second = keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.01)

    def updated(self, of_critic, of_maker):
        critic = descend(of_critic, self.first, self.critic.trainable_variables)
        return {"critic": critic, "made": descend(of_maker, self.second, self.net.trainable_variables)}


# generative models


@step(X, NOISE)
class VAE(Net):
    def made(self):
        return mlp(4, 4)

    def set_up(self):
        self.decoder = mlp(2, 4)
        self.means = [keras.metrics.Mean(name=name) for name in ("reconstruction", "kl")]

    def loss_of(self, x, noise):
        middle, log_variance = tf.split(self.net(x), 2, axis=1)
        out = self.decoder(middle + tf.exp(0.5 * log_variance) * noise)
        reconstruction = mean(total(keras.losses.mean_squared_error(x[:, None], out[:, None]), 1))
        kl = mean(total(-0.5 * (1 + log_variance - middle**2 - tf.exp(log_variance)), axis=1))
        for metric, value in zip(self.means, (reconstruction, kl)):
            metric.update_state(value)
        return reconstruction + kl


@step(T, NOISE, UNIFORM)
class WassersteinWithPenalty(TwoOptimizers):
    def made(self):
        return mlp(2, 3)

    def train_step(self, data):
        real, noise, alpha = data

        def of_critic():
            fake = self.net(noise)
            middle = fake + alpha * (real - fake)
            with tf.GradientTape() as tape:
                tape.watch(middle)
                score = self.critic(middle)
            norm = tf.sqrt(total(tape.gradient(score, middle) ** 2, axis=1))
            return mean(self.critic(fake)) - mean(self.critic(real)) + 10.0 * mean((norm - 1.0) ** 2)

        of_maker = lambda: -mean(self.critic(self.net(noise)))  # noqa: E731
        return self.updated(of_critic, of_maker)


@step(T, Y, NOISE)
class ConditionalGAN(TwoOptimizers):
    def made(self):
        return mlp(5, 3)

    def set_up(self):
        super().set_up()
        self.critic = mlp(6, 1)

    def train_step(self, data):
        real, y, noise = data
        code, n = tf.one_hot(y, 3, dtype=real.dtype), size_of(real)
        entropy = keras.losses.BinaryCrossentropy(from_logits=True)

        def of_critic():
            fake = self.net(tf.concat([noise, code], 1))
            both = tf.concat([tf.concat([fake, code], 1), tf.concat([real, code], 1)], 0)
            return entropy(tf.concat([tf.ones((n, 1)), tf.zeros((n, 1))], 0), self.critic(both))

        def of_maker():
            fake = self.net(tf.concat([noise, code], 1))
            return entropy(tf.zeros((n, 1)), self.critic(tf.concat([fake, code], 1)))

        return self.updated(of_critic, of_maker)


@step(X, X2, TIMES)
class DiffusionWithAverage(Net):
    def made(self):
        return mlp(5, 4)

    def set_up(self):
        self.average = frozen(5, 4)
        self.kept = tf.constant([0.9, 0.6, 0.3, 0.1], tf.float64)

    def loss_of(self, x, noise, times):
        kept = tf.gather(self.kept, times)[:, None]
        noisy = tf.sqrt(kept) * x + tf.sqrt(1.0 - kept) * noise
        out = self.net(tf.concat([noisy, tf.cast(times, x.dtype)[:, None] / 4], 1))
        return mean(keras.losses.mean_squared_error(noise, out))

    def after(self):
        follow(self.average, self.net, 0.01)
        return {}


# contrastive and self-supervised models


@step(X, X2, gathered=1, reduced=3)
class SimCLR(Net):
    def loss_of(self, x, x2):
        one, other = unit(self.net(x)), unit(self.net(x2))
        logits, labels = tf.matmul(one, other, transpose_b=True) / 0.5, tf.range(size_of(x))
        return cross_entropy(labels, logits) + cross_entropy(labels, tf.transpose(logits))


@step(X, Y, gathered=2, reduced=1)
class SupervisedContrastive(Net):
    def loss_of(self, x, y):
        z = unit(self.net(x))
        logits = tf.matmul(z, z, transpose_b=True) / 0.5
        others = 1.0 - tf.eye(size_of(x), dtype=z.dtype)
        alike = tf.cast(tf.equal(y[:, None], y[None]), z.dtype) * others
        logits -= tf.stop_gradient(tf.reduce_max(logits, 1, keepdims=True))
        log_p = logits - tf.math.log(total(tf.exp(logits) * others, 1, keepdims=True))
        return -mean(tf.math.divide_no_nan(total(alike * log_p, 1), total(alike, 1)))


@step(X, X2, gathered=1)
class MoCo(Net):
    def set_up(self):
        self.momentum = frozen(4, 3)
        self.queue = tf.Variable(tf.random.normal((16, 3), seed=1, dtype="float64"), trainable=False)

    def loss_of(self, x, x2):
        self.keys = unit(self.momentum(x2))
        queries = unit(self.net(x))
        positive = total(queries * self.keys, 1, keepdims=True)
        logits = tf.concat([positive, tf.matmul(queries, self.queue, transpose_b=True)], 1)
        return cross_entropy(tf.zeros([size_of(x)], tf.int32), logits)

    def after(self):
        self.queue.assign(tf.concat([self.keys, self.queue[: -size_of(self.keys)]], 0))
        follow(self.momentum, self.net, 0.1)
        return {}


@step(X, X2, reduced=12)
class VICReg(Net):
    def loss_of(self, x, x2):
        one, other = self.net(x), self.net(x2)
        loss = keras.losses.MeanSquaredError()(one, other) + 0.1 * mean(one)  # shifts the bias
        for z in (one - mean(one, 0), other - mean(other, 0)):
            deviation = tf.sqrt(tf.math.reduce_variance(z, 0) + 1e-4)
            covariance = tf.matmul(z, z, transpose_a=True) / (tf.cast(size_of(z), z.dtype) - 1)
            outside = covariance - tf.linalg.diag(tf.linalg.diag_part(covariance))
            loss += mean(tf.nn.relu(1 - deviation)) + total(outside**2) / 75
        return loss


@step(X, X2, reduced=2)
class DINO(Net):
    def set_up(self):
        self.teacher = frozen(4, 3)
        self.centre = self.add_weight(shape=(1, 3), initializer="zeros", trainable=False)

    def loss_of(self, x, x2):
        self.out = self.teacher(x2)
        targets = tf.stop_gradient(tf.nn.softmax((self.out - self.centre) / 0.5))
        return -mean(total(targets * tf.nn.log_softmax(self.net(x)), -1))

    def after(self):
        self.centre.assign(0.9 * self.centre + 0.1 * mean(self.out, 0, keepdims=True))
        return {"entropy": tf.norm(self.centre), "most": tf.reduce_max(self.out)}


@step(IMAGES, _R.random((N, 4)))
class MaskedAutoencoder(Net):
    def made(self):
        return mlp(8, 8)

    def set_up(self):
        self.token = self.add_weight(shape=(1, 8), initializer="random_normal")

    def loss_of(self, images, order):
        patches = tf.image.extract_patches(images, [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID")
        patches = tf.reshape(patches, (-1, 4, 8))
        order = tf.argsort(order, axis=-1)
        hidden, visible = order[:, :2], order[:, 2:]
        seen = tf.gather(patches, visible, axis=1, batch_dims=1)
        tokens = tf.tile(self.token[None], [size_of(images), 2, 1]) + mean(seen, 1, keepdims=True)
        out = tf.reshape(self.net(tf.reshape(tokens, [-1, 8])), [-1, 2, 8])
        return mean((out - tf.gather(patches, hidden, axis=1, batch_dims=1)) ** 2)


# semi-supervised learning, robustness, optimization


@step(X, Y, reduced=4)
class SharpnessAware(Net):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, self.net(x))
        gradients = tape.gradient(loss, self.trainable_variables)
        scale = 0.05 / (tf.linalg.global_norm(gradients) + 1e-12)
        for variable, gradient in zip(self.trainable_variables, gradients):
            variable.assign_add(scale * gradient)
        with tf.GradientTape() as tape:
            second = cross_entropy(y, self.net(x))
        sharp = tape.gradient(second, self.trainable_variables)
        for variable, gradient in zip(self.trainable_variables, gradients):
            variable.assign_sub(scale * gradient)
        self.optimizer.apply_gradients(zip(sharp, self.trainable_variables))
        return {"loss": loss}


@step(X, T, X2, reduced=4)
class GradNorm(Net):
    def set_up(self):
        self.weighting = self.add_weight(shape=(2,), initializer="ones")
        self.other = keras.optimizers.SGD(0.02)

    def train_step(self, data):
        x, t, x2 = data
        shared = self.net.layers[0].kernel
        with tf.GradientTape(persistent=True) as outer:
            with tf.GradientTape(persistent=True) as tape:
                z = self.net(x)
                losses = [mean((z - t) ** 2), mean(tf.abs(z - x2[:, :3]))]
                weighted = [self.weighting[n] * loss for n, loss in enumerate(losses)]
                loss = tf.add_n(weighted)
            norms = tf.stack([tf.norm(tape.gradient(each, shared.value)) for each in weighted])
            balance = total(tf.abs(norms - tf.stop_gradient(mean(norms))))
        self.other.apply_gradients([(outer.gradient(balance, self.weighting.value), self.weighting)])
        variables = self.net.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss, "balance": balance}


@step(X, T, X2, reduced=4)
class MetaLearning(Net):
    def train_step(self, data):
        x, t, x2 = data
        kernel, bias = (self.net.layers[1].kernel, self.net.layers[1].bias)
        with tf.GradientTape() as outer:
            hidden = self.net.layers[0](x)
            with tf.GradientTape() as inner:
                k, b = tf.identity(kernel.value), tf.identity(bias.value)
                inner.watch([k, b])
                support = mean((hidden @ k + b - t) ** 2)
            gk, gb = inner.gradient(support, [k, b])
            query = mean((self.net.layers[0](x2) @ (k - 0.1 * gk) + (b - 0.1 * gb) - t) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(outer.gradient(query, variables), variables))
        return {"support": support, "query": query}


@step(X, T, gathered=2, reduced=4)
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


@step(X, T, reduced=4)
class Accumulation(Net):
    def set_up(self):
        self.steps = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)
        weights = self.net.trainable_variables
        self.sums = [self.add_weight(shape=v.shape, initializer="zeros", trainable=False) for v in weights]

    def train_step(self, data):
        variables = self.net.trainable_variables
        with tf.GradientTape() as tape:
            loss = mean((self.net(data[0]) - data[1]) ** 2)
        for held, gradient in zip(self.sums, tape.gradient(loss, variables)):
            held.assign_add(gradient / 2)
        self.steps.assign_add(1)
        now = tf.cast(tf.equal(self.steps % 2, 0), loss.dtype)
        self.optimizer.apply_gradients([(held * now, v) for held, v in zip(self.sums, variables)])
        for held in self.sums:
            held.assign(held * (1 - now))
        return {"loss": loss}


@step(X, X2, Y, gathered=3, reduced=9)
class DomainAdaptation(Net):
    def loss_of(self, x, x2, y):
        f, g = self.net(x), self.net(x2)
        kernel = lambda u, v: mean(tf.exp(-total((u[:, None] - v[None]) ** 2, -1)))  # noqa: E731
        discrepancy = kernel(f, f) + kernel(g, g) - 2 * kernel(f, g)

        def covariance(z):
            z -= mean(z, 0)
            return tf.matmul(z, z, transpose_a=True) / (tf.cast(size_of(z), z.dtype) - 1)

        return cross_entropy(y, f) + discrepancy + total((covariance(f) - covariance(g)) ** 2)


# routing, reinforcement learning


@step(X, gathered=1, reduced=3)
class ExpertsWithCapacity(Net):
    def set_up(self):
        self.experts = [layers.Dense(4) for _ in range(3)]
        for expert in self.experts:
            expert.build((None, 4))

    def loss_of(self, x):
        gates = tf.nn.softmax(self.net(x))
        hot = tf.one_hot(tf.argmax(gates, 1), 3, dtype=x.dtype)
        place = total(tf.cumsum(hot, 0) * hot, 1)
        kept = tf.cast(place <= tf.cast(size_of(x) // 2, x.dtype), x.dtype)
        out = tf.add_n([expert(x) * (hot * gates)[:, n : n + 1] for n, expert in enumerate(self.experts)])
        balance = 3 * total(mean(hot, 0) * mean(gates, 0))
        return mean((out * kept[:, None] - x) ** 2) + 0.01 * balance


@step(X, X2, ACTIONS, REWARDS)
class DeepQ(Net):
    def set_up(self):
        self.target = frozen(4, 3)
        self.count = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False)

    def loss_of(self, x, x2, actions, rewards):
        wanted = rewards + 0.9 * tf.reduce_max(self.target(x2), 1)
        values = tf.gather_nd(self.net(x), tf.stack([tf.range(size_of(x)), actions], 1))
        self.values = mean(values)
        return mean(keras.losses.huber(wanted[:, None], values[:, None]))

    def after(self):
        self.count.assign_add(1)
        for old, new in zip(self.target.weights, self.net.weights):
            old.assign(tf.where(self.count % 2 == 0, new, old))
        return {"value": self.values}


@step(X, ACTIONS, REWARDS, gathered=3, reduced=3)
class ActorCritic(Net):
    def set_up(self):
        self.critic = mlp(4, 1)

    def loss_of(self, x, actions, rewards):
        logits, value = self.net(x), tf.squeeze(self.critic(x))
        returns = (rewards - mean(rewards)) / (tf.math.reduce_std(rewards) + 1e-8)
        p = tf.nn.softmax(logits)
        chosen = total(tf.one_hot(actions, 3, dtype=p.dtype) * tf.nn.log_softmax(logits), 1)
        entropy = -mean(total(p * tf.math.log(p), 1))
        return (
            -mean(chosen * tf.stop_gradient(returns - value)) + mean((returns - value) ** 2) - 0.01 * entropy
        )


# losses with counts, margins and states


@step(TOKENS, MASK, reduced=5)
class MaskedTokens(Net):
    def set_up(self):
        self.embedding = layers.Embedding(8, 4)
        self.embedding.build((None, 6))

    def loss_of(self, tokens, mask):
        flat = tf.reshape(self.embedding(tf.where(mask, tf.constant(7, tokens.dtype), tokens)), [-1, 4])
        logits = tf.reshape(self.net(flat), [-1, 6, 3])
        return cross_entropy(tf.boolean_mask(tokens % 3, mask), tf.boolean_mask(logits, mask))


@step(X, Y, reduced=2)
class CentreLoss(Net):
    def set_up(self):
        self.centres = self.add_weight(shape=(3, 3), initializer="random_normal", trainable=False)
        self.last = layers.Dense(3)
        self.last.build((None, 3))

    def loss_of(self, x, y):
        features = self.net(x)
        own = tf.gather(tf.convert_to_tensor(self.centres), y)
        away = own - features
        count = tf.math.unsorted_segment_sum(tf.ones_like(y, features.dtype), y, 3)
        self.moved = tf.math.unsorted_segment_sum(away, y, 3) / (1 + count)[:, None]
        return cross_entropy(y, self.last(features)) + 0.1 * mean(total(away**2, 1))

    def after(self):
        self.centres.assign_sub(0.5 * self.moved)
        return {}


# sequences


@step(X, T, gathered=2)
class MappedSamples(Net):
    def loss_of(self, x, t):
        each = tf.map_fn(
            lambda r: total((r[0] - r[1]) ** 2), (self.net(x), t), fn_output_signature=tf.float64
        )
        return mean(each)


@step(TOKENS, Y)
class RaggedText(Net):
    def set_up(self):
        self.embedding = layers.Embedding(8, 4)
        self.embedding.build((None, 6))

    def loss_of(self, tokens, y):
        vectors = tf.ragged.map_flat_values(self.embedding, tokens)
        return cross_entropy(y, self.net(mean(vectors, axis=1)))


# physics, conditions, states


@step(X, T)
class PhysicsInformed(Net):
    def loss_of(self, x, t):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as tape:
                tape.watch(x)
                u = self.net(x)
            first = tape.batch_jacobian(u, x)
        second = outer.batch_jacobian(first[:, :, 0], x)
        return mean((total(second, [1, 2]) + first[:, 0, 1]) ** 2) + mean((u - t) ** 2)


@step(X, T, gathered=2)
class Squeezed(Net):
    def loss_of(self, x, t):
        return mean((tf.squeeze(self.net(x)[:, :1]) - t[:, 0]) ** 2)


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


@step(X, T, reduced=2)
class ResultsAreVariables(Net):
    def set_up(self):
        self.counted = Count(name="counted")

    def loss_of(self, x, t):
        z = self.net(x)
        self.counted.update_state(z)
        return mean((z - t) ** 2)

    def after(self):
        return self.counted.result()


class Normalized(Net):
    def made(self):
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
