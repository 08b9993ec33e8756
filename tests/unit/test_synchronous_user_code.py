"""Synchronous parameter-server steps: one worker computes a step with user code, because it cannot be split."""

import warnings
from types import SimpleNamespace

import keras
import pytest

import unisono
from unisono.trainer.parameter_servers import synchronous


class Own(unisono.Model):
    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(1)

    def call(self, x):
        return self.out(x)


def steps_of(model, monkeypatch):
    def workers(self, model, training):
        self._model, self._num_workers, self._strategy = model, 3, SimpleNamespace()

    monkeypatch.setattr(synchronous.WorkerSteps, "__init__", workers)
    return synchronous.SynchronousSteps(model, backups=1)


def test_one_worker_computes_user_code_and_this_is_said(monkeypatch):
    model = Own()
    model.compile("sgd", "mse")
    with pytest.warns(UserWarning, match="`backup_workers=1` one worker computes each batch as a whole"):
        assert steps_of(model, monkeypatch)._num_parts == 1


def test_layers_of_keras_are_computed_sharded(monkeypatch):
    model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert steps_of(model, monkeypatch)._num_parts == 2
