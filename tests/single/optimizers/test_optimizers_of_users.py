"""Optimizers that the model does not track, and those that use all gradients at once, match a single device."""

from types import SimpleNamespace

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono

ROWS = 10


class UnitSteps(keras.optimizers.SGD):
    def apply(self, grads, trainable_variables=None):
        norm = tf.linalg.global_norm(grads)
        super().apply([gradient / (norm + 1e-6) for gradient in grads], trainable_variables)


class ClipsAll(keras.optimizers.SGD):
    def apply_gradients(self, grads_and_vars, **options):
        gradients, variables = zip(*grads_and_vars)
        clipped, _ = tf.clip_by_global_norm(gradients, 0.3)
        return super().apply_gradients(zip(clipped, variables), **options)


class Hidden(unisono.Model):
    """Its optimizers are in untracked attributes; one of them has a custom `apply`."""

    def __init__(self, place):
        super().__init__()
        self.a, self.b = (keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]) for _ in range(2))
        made = {"a": keras.optimizers.Adam(0.01), "b": UnitSteps(0.05)}
        if place == "private":
            self._made = made
        elif place == "nested":
            self.made = {"nets": made}
        else:
            self.made = SimpleNamespace(**made)
        self.optimizer_of = made.__getitem__

    def train_step(self, data):
        x, y = data
        losses = {}
        for name, net in (("a", self.a), ("b", self.b)):
            with tf.GradientTape() as tape:
                losses[name] = tf.reduce_mean(tf.square(y - net(x)))
            weights = net.trainable_variables
            gradients = tape.gradient(losses[name], weights)
            optimizer, pairs = self.optimizer_of(name), zip(gradients, weights)
            if name == "b":  # a rule that uses all gradients at once
                pairs = unisono.optimizers.adopt(optimizer).aggregate_gradients(pairs)
                optimizer.apply_gradients(pairs, skip_gradients_aggregation=True)
            else:
                optimizer.apply_gradients(pairs)
        return losses


def numbers(make, strategy, optimizer=None):
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).normal(size=(ROWS, 3)).astype("float32")
    with helpers.scope(strategy):
        model = make()
        model.compile(optimizer, None if optimizer is None else "mse", jit_compile=False)
    history = model.fit(x, x[:, :2], batch_size=4, epochs=2, shuffle=False, verbose=0).history
    return [*model.get_weights(), *(np.array(history[name]) for name in sorted(history))]


@pytest.mark.parametrize("place", ["private", "nested", "object"])
@pytest.mark.short("nested")
def test_an_optimizer_that_is_found_nowhere_is_adopted_when_it_is_called(place):
    one, two = (numbers(lambda: Hidden(place), strategy) for strategy in (None, helpers.mirrored(2)))
    helpers.assert_close(two, one, helpers.FLOAT32)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", [UnitSteps, ClipsAll])
@pytest.mark.parametrize("replicas", [2, 3])
def test_an_optimizer_that_reads_all_gradients_is_given_those_of_the_global_batch(optimizer, replicas):
    def make():
        return unisono.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(2)])

    one = numbers(make, None, optimizer(0.05))
    helpers.assert_close(numbers(make, helpers.mirrored(replicas), optimizer(0.05)), one, helpers.FLOAT32)
