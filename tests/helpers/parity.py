"""Trains a model on one device and on replicas, for tests of computation across samples; and two models of such tests."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
from helpers import FLOAT64, assert_close, mirrored, scope

import unisono

L, ops = keras.layers, keras.ops
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(15, 6)), RNG.normal(size=(15, 2))
BATCH = 7  # uneven on two and three replicas; the last batch has one sample


def trained(make: Any, replicas: int, x: Any = X, y: Any = Y, batch: int = BATCH, **options: Any) -> Any:
    """Variables, predictions, logs of training and validation; and the warnings that a step runs on one replica."""
    keras.utils.set_random_seed(3)
    with scope(mirrored(replicas) if replicas > 1 else None), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model = make()
        model.compile(unisono.optimizers.SGD(0.05, momentum=0.9), **{"loss": "mse", **options})
        fit = {"batch_size": batch, "epochs": 2, "shuffle": False, "verbose": 0}
        history = model.fit(x, y, validation_data=(x, y), **fit).history
        predictions = model.predict(x, batch_size=batch, verbose=0)
    found = [[v.numpy() for v in model.variables if v.dtype.startswith("float")], predictions, history]
    return found, [str(each.message) for each in said if "on one replica" in str(each.message)]


def assert_parity(make: Any, replicas: int, reason: str | None = None, **options: Any) -> None:
    """Compares replicas with one device; `reason`: why the step must run on one replica."""
    found, said = trained(make, replicas, **options)
    assert_close(found, trained(make, 1, **options)[0], FLOAT64, "results")
    assert said == [] if reason is None else len(said) == 1 and reason in said[0]


def centered(x: Any) -> Any:
    return x - ops.mean(x, axis=0, keepdims=True)


class OfCall(unisono.Model):
    """Mixes samples in the model's own `call`."""

    def __init__(self, mix=centered):
        super().__init__()
        self.first, self.last, self.mix = L.Dense(6), L.Dense(2), mix

    def call(self, x, training=False):
        return self.last(ops.tanh(self.mix(self.first(x))))


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
