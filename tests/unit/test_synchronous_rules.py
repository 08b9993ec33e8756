"""Synchronous steps on parameter servers refuse numbers that the servers cannot join, before the first step."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import unisono
from unisono.distribute.join_rules import MEAN
from unisono.trainer.parameter_servers import synchronous
from unisono.trainer.parameter_servers.synchronous import SynchronousSteps

X, Y = np.ones((8, 3), "float32") * np.arange(1.0, 9.0, dtype="float32")[:, None], np.zeros((8, 1), "float32")


@pytest.fixture(autouse=True)
def chief_of_no_cluster(monkeypatch):
    monkeypatch.setattr(synchronous, "HOST", "CPU:0")


def rules_found(model):
    """What these steps find from the first rows of a batch; without the servers, which they do not ask."""
    steps = object.__new__(SynchronousSteps)
    steps._model, steps._strategy, steps._backups = model, tf.distribute.get_strategy(), 1
    batch = (tf.constant(X), tf.constant(Y))
    return steps._found_rules(SimpleNamespace(reader=lambda resident, i: batch, resident=None, place=None))


class Own(unisono.Model):
    """`loss_of` and `mix` are the test's."""

    def __init__(self, loss_of, mix=lambda x: x):
        super().__init__()
        self.out, self.loss_of, self.mix = keras.layers.Dense(1), loss_of, mix

    def call(self, x):
        return self.mix(self.out(x))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return self.loss_of(y, y_pred)


def built(*args):
    model = Own(*args)
    model.compile("sgd")
    model(X)
    return model


def error(y, y_pred):
    return ops.mean(ops.square(y - y_pred))


class Penalty(keras.layers.Layer):
    """Adds a function of a mean."""

    def call(self, x):
        self.add_loss(ops.exp(ops.mean(ops.square(x))))
        return x


def centered(x):
    return x - ops.mean(x, axis=0)


def test_means_are_joined():
    assert rules_found(built(error)).loss == MEAN


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([lambda y, p: ops.exp(-error(y, p))], "gives to compute_loss is a number that looks across rows"),
        ([lambda y, p: ops.sum(ops.square(y - p))], "gives to compute_loss is a sum over the rows"),
        ([error, centered], "computes numbers that are neither means"),
    ],
    ids=["function of a mean", "sum", "model that mixes rows"],
)
@pytest.mark.filterwarnings("ignore:.*first replica computes:UserWarning")
def test_numbers_that_are_no_means_are_refused(args, words):
    with pytest.raises(ValueError, match=rf"the code of Own {words}") as refused:
        rules_found(built(*args))
    assert "`backup_workers=1`) join means alone" in str(refused.value)


@pytest.mark.filterwarnings("ignore:.*first replica computes:UserWarning")
def test_added_function_of_a_mean_is_refused():
    model = unisono.Sequential([keras.Input((3,)), Penalty(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="the code of Sequential computes numbers that are neither means"):
        rules_found(model)
