"""Errors while a step is traced for batches of any size: user code runs on one replica, a bug of the library is named."""

import warnings
from unittest.mock import Mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_close, mirrored

import unisono
from unisono.trainer.partition import conversions, labels
from unisono.trainer.partition.steps import traced_step

pytestmark = [pytest.mark.falls_back, pytest.mark.filterwarnings("default")]

X = np.random.default_rng(1).normal(size=(12, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class CountsSamples(unisono.Sequential):
    """Right in Keras for batches of a known size."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            errors = [tf.square(self(x[i : i + 1], training=True) - y[i : i + 1]) for i in range(x.shape[0])]
            loss = tf.add_n(errors) / x.shape[0]
        self.optimizer.apply_gradients(
            zip(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        )
        return {"loss": tf.reduce_sum(loss)}


def weights(replicas, model_class=CountsSamples):
    keras.utils.set_random_seed(3)
    with mirrored(replicas).scope():
        model = model_class([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(4, drop_remainder=True)
    model.fit(data, epochs=2, verbose=0)
    return [v.numpy() for v in model.variables]


@pytest.mark.long
def test_code_that_needs_a_known_batch_size_runs_on_one_replica_and_its_line_is_named():
    expected = weights(1)
    with pytest.warns(UserWarning, match=r"raises TypeError: .*raised in test_trace_errors.py:\d+"):
        found = weights(2)
    assert_close(found, expected, 1e-6, "variables")


class MisusesLibrary(unisono.Sequential):
    """The library raises an error for a wrong argument, which is the user's."""

    def train_step(self, data):
        unisono.distribute.simulate_devices(-data[0].shape[0] if data[0].shape[0] else 0)


def test_error_that_the_library_raises_for_a_wrong_argument_is_the_users():
    with warnings.catch_warnings(record=True) as found, pytest.raises(ValueError, match="Received: -4"):
        warnings.simplefilter("always")
        weights(2, MisusesLibrary)
    assert not any("one replica" in str(each.message) for each in found)


class Fails(unisono.Sequential):
    def train_step(self, data):
        raise KeyError("mine")


def test_error_that_the_whole_step_raises_too_is_raised_unchanged():
    with pytest.raises(KeyError, match="mine"):
        weights(2, Fails)


def break_rules(monkeypatch):
    broken = Mock(side_effect=ZeroDivisionError("of a rule"))
    monkeypatch.setattr(traced_step, "partition_graph", broken)


def test_error_of_the_library_is_named_as_a_bug_and_the_step_still_runs(monkeypatch):
    expected = weights(1, unisono.Sequential)

    break_rules(monkeypatch)
    with pytest.warns(UserWarning, match="ZeroDivisionError: of a rule .*bug in Unisono: please report"):
        found = weights(2, unisono.Sequential)
    assert_close(found, expected, 1e-6, "variables")


class BreaksLibrary(unisono.Sequential):
    """The library fails in a place where it raises nothing on purpose."""

    def train_step(self, data):
        if data[0].shape[0] is None:
            conversions.convert_locally(None, labels.REPLICATED, labels.EMPTY, None)
        return super().train_step(data)


def test_error_that_the_library_raises_without_a_purpose_is_a_bug():
    with pytest.warns(
        UserWarning, match=r"AssertionError: .* \(conversions.py:.*bug in Unisono: please report"
    ):
        weights(2, BreaksLibrary)


def test_fallback_to_one_replica_is_an_error_where_that_is_asked_for(monkeypatch):
    monkeypatch.setenv("UNISONO_STRICT", "1")
    with pytest.raises(RuntimeError, match=r"runs on one replica, .* UNISONO_STRICT=1 makes this an error"):
        weights(2, CountsSamples)
    break_rules(monkeypatch)
    with pytest.raises(ZeroDivisionError):
        weights(2, unisono.Sequential)


@pytest.mark.parametrize("strict", ["0", "1"])
def test_error_of_user_code_comes_without_a_word_on_one_replica(strict, monkeypatch, recwarn):
    monkeypatch.setenv("UNISONO_STRICT", strict)
    with mirrored(2).scope():
        model = unisono.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse")
    for _ in range(2):
        with pytest.raises(ValueError, match="shape"):
            model.fit(X, Y[:, [0, 0, 0]], batch_size=4, verbose=0)
    assert not [str(each.message) for each in recwarn if "one replica" in str(each.message)]


@pytest.mark.parametrize("strict", ["0", "1"])
@pytest.mark.long
def test_each_call_says_that_it_runs_on_one_replica_until_it_has(strict, monkeypatch):
    monkeypatch.setenv("UNISONO_STRICT", strict)
    with mirrored(2).scope():
        model = CountsSamples([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    for number in range(2):
        if strict == "1":
            with pytest.raises(RuntimeError, match="runs on one replica"):
                model.fit(X, Y, batch_size=4, verbose=0)
        else:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                model.fit(X, Y, batch_size=4, verbose=0)
            assert len([each for each in said if "runs on one replica" in str(each.message)]) == (number == 0)


class EmptyColumns(unisono.Sequential):
    def train_step(self, data):
        none = tf.cast(data[0], tf.int32)[:, :0] + 1  # as many samples as the batch, and no element
        logs = super().train_step(data)
        return {**logs, "none": tf.reduce_sum(none, 1)[:1]}


@pytest.mark.long
def test_integers_without_elements_are_labelled():
    assert_close(weights(2, EmptyColumns), weights(1, EmptyColumns), 1e-6, "variables")
