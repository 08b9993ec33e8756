"""The private parts of Keras and TensorFlow that `callbacks` uses still exist and behave as expected."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono
from unisono.compat.keras_private.callbacks import CALLBACK_ATTRIBUTES
from unisono.compat.keras_private.layers import layers_of
from unisono.compat.keras_private.random_state import (
    eager_seed_source,
    global_generator,
    global_seed_generator_state,
)
from unisono.compat.keras_private.variables import is_read_together, sums_on_read


def test_global_seed_generator_is_the_one_behind_seed_none():
    keras.backend.clear_session()
    assert global_seed_generator_state() is None
    keras.utils.set_random_seed(1)
    keras.random.uniform(())
    state = global_seed_generator_state()
    before = state.numpy()
    first = float(keras.random.uniform(()))
    assert not np.array_equal(state.numpy(), before)
    state.assign(before)
    assert float(keras.random.uniform(())) == first


@pytest.mark.parametrize("name", sorted(CALLBACK_ATTRIBUTES))
def test_attributes_of_keras_callbacks_exist_when_training_begins(name):
    make = {
        "ModelCheckpoint": lambda: keras.callbacks.ModelCheckpoint("a.keras"),
        "TensorBoard": lambda: keras.callbacks.TensorBoard("nowhere"),
    }
    if name == "OrbaxCheckpoint":
        source = keras.callbacks.OrbaxCheckpoint.__init__.__code__.co_names
        assert set(CALLBACK_ATTRIBUTES[name]) <= {*source, "best"}
        return
    callback = make.get(name, getattr(keras.callbacks, name))()
    if name in ("EarlyStopping", "ReduceLROnPlateau", "History"):
        callback.on_train_begin()
    missing = [a for a in CALLBACK_ATTRIBUTES[name] if not hasattr(callback, a)]
    assert not missing


def test_layers_of_a_model_are_found_with_those_inside():
    inner = unisono.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model = unisono.Sequential([keras.Input((2,)), inner])
    found = layers_of(model)
    assert found[0] is model and inner in found and inner.layers[0] in found


def test_seeds_of_eager_operations_come_from_a_python_generator():
    tf.random.set_seed(1)
    source = eager_seed_source()
    assert isinstance(source, random.Random)
    state = source.getstate()
    first = tf.random.uniform([]).numpy()
    assert source.getstate() != state
    source.setstate(state)
    tf.random.uniform([])
    assert first is not None


def test_global_generator_is_seen_only_when_there_is_one():
    tf.random.set_global_generator(tf.random.Generator.from_seed(1))
    assert global_generator() is tf.random.get_global_generator()


def test_metric_variables_are_read_together_and_summed():
    metric, weight = keras.metrics.Mean(), keras.Variable([1.0])
    assert sums_on_read(metric.total._value)
    assert not is_read_together(weight._value)
