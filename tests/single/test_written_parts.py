"""State computed from means and sums, such as a clipped probability, matches a single device.

Two and three uneven replicas are compared with one device. Tolerance: float64 sums in a different order.
"""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from tests.helpers import mirrored

pytestmark = pytest.mark.usefixtures("float64")
L, ops = keras.layers, keras.ops
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(26, 5)), RNG.normal(size=(26, 2))
FLOAT64 = 1e-12


class Adaptive(L.Layer):
    """A probability that a batch mean adjusts between 0 and 1, as in adaptive augmentation."""

    def build(self, shape):
        self.probability = self.add_weight(shape=(), initializer="zeros", trainable=False, name="probability")

    def call(self, x, training=False):
        if training:
            step = ops.mean(ops.sign(x[:, 0])) * 0.6
            self.probability.assign(ops.clip(self.probability + step, 0.0, 1.0))
        return x * (1.0 + self.probability)


class Floored(L.Layer):
    """A normalization whose variance is a difference of two means, which must not be negative."""

    def build(self, shape):
        self.mean = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False, name="mean")
        self.variance = self.add_weight(
            shape=(shape[-1],), initializer="ones", trainable=False, name="variance"
        )

    def call(self, x, training=False):
        result = (x - self.mean) / ops.sqrt(self.variance + 1e-3)
        if training:
            mean, square = ops.mean(x, 0), ops.mean(ops.square(x), 0)
            self.mean.assign(0.9 * self.mean + 0.1 * mean)
            self.variance.assign(0.9 * self.variance + 0.1 * ops.maximum(square - ops.square(mean), 0.05))
        return result


class Ratio(L.Layer):
    """The share of positive entries among the large ones, and half the largest squared norm of a sample, with decay."""

    def build(self, shape):
        self.share = self.add_weight(shape=(), initializer="zeros", trainable=False, name="share")
        self.sizes = self.add_weight(shape=(shape[-1],), initializer="ones", trainable=False, name="sizes")
        self.bound = self.add_weight(shape=(), initializer="ones", trainable=False, name="bound")

    def call(self, x, training=False):
        if training:
            large = ops.cast(ops.abs(x) > 0.3, x.dtype)
            positive = ops.sum(large * ops.cast(x > 0, x.dtype))
            self.share.assign(positive / ops.maximum(ops.sum(large), 1.0))
            self.sizes.assign(0.9 * self.sizes + 0.1 * ops.max(ops.abs(x), axis=0))
            self.bound.assign(ops.maximum(0.5 * self.bound, 0.5 * ops.max(ops.sum(ops.square(x), -1))))
        return ops.clip(x * (1.0 + self.share), -self.sizes, self.sizes) + self.bound


class Codebook(L.Layer):
    """A codebook of moving averages of the nearest inputs (VQ-VAE)."""

    def build(self, shape):
        kept = {"trainable": False, "dtype": "float64"}
        start = keras.initializers.Constant(np.random.default_rng(1).normal(size=(shape[-1], 4)))
        self.vectors = self.add_weight(shape=(shape[-1], 4), initializer=start, name="vectors", **kept)
        self.sums = self.add_weight(shape=(shape[-1], 4), initializer=start, name="sums", **kept)
        self.counts = self.add_weight(shape=(4,), initializer="ones", name="counts", **kept)

    def call(self, x, training=False):
        distances = (
            ops.sum(x**2, 1, keepdims=True) + ops.sum(self.vectors**2, 0) - 2 * ops.matmul(x, self.vectors)
        )
        chosen = ops.one_hot(ops.argmin(distances, 1), 4, dtype=x.dtype)
        nearest = ops.matmul(chosen, ops.transpose(self.vectors))
        if training:
            self.counts.assign(0.9 * self.counts + 0.1 * ops.sum(chosen, 0))
            self.sums.assign(0.9 * self.sums + 0.1 * ops.matmul(ops.transpose(x), chosen))
            total = ops.sum(self.counts)
            counts = (self.counts + 1e-5) / (total + 4e-5) * total
            self.vectors.assign(self.sums / counts)
        self.add_loss(0.25 * ops.mean(ops.square(ops.stop_gradient(nearest) - x)))
        return x + ops.stop_gradient(nearest - x)


def network(layer):
    inputs = keras.Input((5,))
    return unisono.Model(inputs, L.Dense(2)(L.Dense(4, activation="tanh")(layer()(inputs))))


class Own(unisono.Model):
    """A custom step that updates a bounded loss weight, which the next step uses."""

    def __init__(self):
        super().__init__()
        self.dense = L.Dense(2)
        self.weight = keras.Variable(0.2, trainable=False, dtype="float64", name="weight")

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            error = ops.mean(ops.square(self(x) - y))
            loss = self.weight * error
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        self.weight.assign(tf.clip_by_value(self.weight + 0.3 * (error - 1.6), 0.1, 1.0))
        return {"loss": loss, "weight": self.weight.value}


def trained(make, replicas, epochs=3, batch_size=7):
    keras.utils.set_random_seed(3)
    with mirrored(replicas).scope() if replicas > 1 else tf.distribute.get_strategy().scope():
        model = make()
        model.compile(keras.optimizers.SGD(0.05), "mse")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        history = model.fit(X, Y, batch_size=batch_size, epochs=epochs, shuffle=False, verbose=0).history
    return history, [v.numpy() for v in model.variables], [str(each.message) for each in said]


PROGRAMS = {
    "clipped": lambda: network(Adaptive),
    "floored": lambda: network(Floored),
    "ratio": lambda: network(Ratio),
    "own step": Own,
    "codebook": lambda: network(Codebook),
}


@pytest.mark.short("codebook-3", "floored-2", "clipped-2", "own step-3")
@pytest.mark.parametrize("replicas", [2, 3])
@pytest.mark.parametrize("name", PROGRAMS)
def test_state_is_written_as_one_device_writes_it(name, replicas):
    history, values, _ = trained(PROGRAMS[name], 1)
    found = trained(PROGRAMS[name], replicas)
    for one, other in zip(values, found[1], strict=True):
        np.testing.assert_allclose(other, one, rtol=FLOAT64, atol=FLOAT64)
    for key, numbers in history.items():
        np.testing.assert_allclose(found[0][key], numbers, rtol=FLOAT64, err_msg=key)
    assert not any("one device" in words or "first replica" in words for words in found[2]), (
        "all share the work"
    )


def test_states_of_the_programs_reach_their_bounds():
    _, values, _ = trained(PROGRAMS["clipped"], 1, epochs=1)
    assert any(v.shape == () and v in (0.0, 1.0) for v in values)


def test_state_that_declares_an_aggregation_is_written_as_one_device_writes_it():
    class Declared(Adaptive):
        def build(self, shape):
            self.probability = self.add_weight(
                shape=(), initializer="zeros", trainable=False, aggregation="sum"
            )

    (_, one, _), (_, two, said) = (trained(lambda: network(Declared), replicas) for replicas in (1, 2))
    assert said == []
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(b, a, rtol=FLOAT64, atol=FLOAT64)


def test_state_that_a_branch_writes_is_left_to_the_end_of_the_step():
    class Sometimes(Adaptive):
        def call(self, x, training=False):
            if training:
                step = ops.mean(ops.sign(x[:, 0])) * 0.1

                def moved():
                    self.probability.assign(self.probability + step)
                    return self.probability + 0.0

                tf.cond(self.probability < 10.0, moved, lambda: self.probability + 0.0)
            return x * (1.0 + self.probability)

    (_, one, _), (_, two, _) = (
        trained(lambda: network(Sometimes), replicas, epochs=2) for replicas in (1, 2)
    )
    assert np.isfinite([v.sum() for v in two]).all()
    scalars = [[v for v in values if v.shape == ()] for values in (one, two)]
    np.testing.assert_allclose(scalars[1], scalars[0], rtol=FLOAT64)
