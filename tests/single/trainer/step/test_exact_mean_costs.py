"""The cost of the exact mean: the collectives of one step, counted while the step is traced."""

from __future__ import annotations

from collections import Counter
from typing import Any

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono

pytestmark = pytest.mark.as_for_users  # the cost of a step for users

REPLICAS = 2


def own_loss(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.mean(keras.ops.square(y_true - y_pred))


def own_metric(y_true: Any, y_pred: Any) -> Any:
    return keras.ops.mean(keras.ops.abs(y_true - y_pred))


class CustomStep(unisono.Sequential):
    def train_step(self, data):
        logs = super().train_step(data)
        return {**logs, "twice": 2 * logs["loss"]}


class OwnLog(helpers.GradientsOfItsOwn, unisono.Sequential):
    def loss_of(self, x, y):
        return own_loss(y, self(x, training=True))

    def logs_of(self, loss, x):
        return {"loss": loss, "samples": tf.shape(x)[0]}


CLASSES = {"own step": CustomStep, "own log": OwnLog}


def model(kind: str) -> Any:
    layers: list[Any] = [keras.layers.Dense(3)]
    arguments: dict[str, Any] = {"loss": "mse", "metrics": ["mae", "mape"]}
    if kind == "mask":
        layers.insert(0, keras.layers.Masking())
    if kind == "batch normalization":
        layers.append(keras.layers.BatchNormalization())
    if kind in ("own loss", "own loss by samples"):
        arguments["loss"] = own_loss if kind == "own loss" else unisono.rowwise(lambda y, p: own_loss(y, p))
    if kind == "own metric":
        arguments["metrics"] = [own_metric]
    with helpers.mirrored(REPLICAS).scope():
        made = CLASSES.get(kind, unisono.Sequential)([keras.Input((4, 3)), *layers])
        made.compile("sgd", **arguments)
    return made


# (all-reduces, all-gathers) in one step; every step has one for all gradients.
COSTS = {
    "rows": (1, 0),
    "mask": (2, 0),  # the number of valid entries, known before the backward pass
    "batch normalization": (3, 0),  # the moving mean and variance, packed together
    "own loss": (1, 0),  # a mean of squares needs a sum and a count
    "own loss by samples": (1, 0),
    "own metric": (1, 0),
    "own step": (4, 0),  # and, for the logs of metrics, their totals or counts, packed together
    "own log": (1, 0),  # a mean is carried as the replicas' parts to the end of the call
}


@pytest.mark.parametrize("kind", COSTS)
@pytest.mark.short(but=["own step"])
def test_collectives_of_a_step(kind):
    x, y = np.ones((5, 4, 3), "float32"), np.ones((5, 4, 3), "float32")
    kinds = Counter(each.kind for each in model(kind).explain_step(x, y).collectives)
    assert (kinds["all-reduce"], kinds["all-gather"]) == COSTS[kind]
