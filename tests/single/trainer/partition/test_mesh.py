"""Keras' distributions on TensorFlow: a mesh of devices, its strategy, and the same weights as on one device."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import FLOAT64

import unisono
from unisono.distribute import auto_strategy, strategy_of
from unisono.distribute.workers.cluster import ClusterError

DATA = np.random.default_rng(0).normal(size=(16, 4))


@pytest.fixture(autouse=True)
def float64():
    keras.config.set_floatx("float64")


def small_model(kind=unisono.Sequential):
    keras.utils.set_random_seed(1)
    return kind(
        [keras.Input((4,)), keras.layers.Dense(8, "tanh", name="up"), keras.layers.Dense(2, name="down")]
    )


def trained(model):
    model.compile(unisono.optimizers.Adam(0.1), "mse", jit_compile=False)
    model.fit(DATA, DATA[:, :2], batch_size=7, shuffle=False, verbose=0)
    return model


def on_one_device():
    return trained(small_model()).get_weights()


def model_parallel(shape, layouts=(), names=("batch", "model"), devices=None):
    found = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(shape, names, devices))
    for pattern, axes in dict(layouts).items():
        found[pattern] = axes
    return keras.distribution.ModelParallel(layout_map=found, batch_dim_name="batch")


def equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=FLOAT64, atol=FLOAT64)


def check_copies(model, replicas):
    assert model.distribute_strategy.num_replicas_in_sync == replicas
    for variable in model.variables:
        copies = [copy.numpy() for copy in variable.value.values]
        assert len(copies) == replicas
        assert all(np.array_equal(copy, copies[0]) for copy in copies)


@pytest.mark.long
def test_strategy_of_each_distribution_trains_as_one_device():
    expected = on_one_device()
    layouts = {".*up/kernel": (None, "model")}
    for distribution, replicas in (
        (keras.distribution.DataParallel(), 4),
        (keras.distribution.DataParallel(devices=["cpu:2", "cpu:0"]), 2),
        (model_parallel((4, 1), layouts), 4),
        (model_parallel((1, 3), layouts, ("model", "batch"), ["cpu:0", "cpu:1", "cpu:2"]), 3),
    ):
        strategy = strategy_of(distribution)
        assert strategy_of(distribution) is strategy
        with strategy.scope():
            model = trained(small_model())
        check_copies(model, replicas)
        equal(model.get_weights(), expected)


def test_strategy_of_a_mesh_of_one_device_has_one_device():
    strategy = strategy_of(keras.distribution.DataParallel(devices=["cpu:1"]))
    assert isinstance(strategy, tf.distribute.OneDeviceStrategy)
    assert strategy.extended.worker_devices[0].endswith("CPU:1")


def test_auto_strategy_is_that_of_the_distribution_that_is_set():
    distribution = keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"])
    keras.distribution.set_distribution(distribution)
    assert auto_strategy() is strategy_of(distribution)


def in_scope_alone():
    with keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]).scope():
        model = small_model()
    return trained(model)


def set_before():
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]))
    return trained(small_model())


def set_after_the_model():
    model = small_model()
    with keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]).scope():
        return trained(model)


def adopted():
    with keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]).scope():
        return trained(unisono.adopt(small_model(keras.Sequential)))


@pytest.mark.long
@pytest.mark.parametrize("make", [in_scope_alone, set_before, set_after_the_model, adopted])
def test_model_under_a_distribution_of_keras_trains_on_its_devices(make):
    model = make()
    check_copies(model, 2)
    equal(model.get_weights(), on_one_device())


def test_functional_and_subclassed_models_remember_the_scope_they_were_made_in():
    class Own(unisono.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(2)

        def call(self, x):
            return self.dense(x)

    with keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]).scope():
        inputs = keras.Input((4,))
        models = [Own(), unisono.Model(inputs, keras.layers.Dense(2)(inputs))]
    for model in models:
        model.compile("sgd", "mse")
        assert model.distribute_strategy.num_replicas_in_sync == 2


def test_model_of_another_strategy_than_the_distribution_raises():
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]))
    with tf.distribute.OneDeviceStrategy("CPU:0").scope():
        model = small_model()
        with pytest.raises(ValueError, match=r"DataParallel.*strategy_of"):
            model.compile("sgd", "mse")


def test_wrong_meshes_raise_before_anything_is_trained(monkeypatch):
    with pytest.raises(ValueError, match=r"shape=\(3,\).*\(4,\)"):  # Keras' own error
        keras.distribution.DeviceMesh((3,), ("batch",))
    with pytest.raises(ValueError, match=r"CPU:9.*does not exist"):
        strategy_of(keras.distribution.DataParallel(devices=["cpu:0", "cpu:9"]))
    with pytest.raises(ValueError, match=r"needs 2 devices, but it has 1"):
        strategy_of(keras.distribution.DataParallel(devices=["cpu:1", "cpu:1"]))
    with pytest.raises(TypeError, match=r"`distribution` must be.*DataParallel"):
        strategy_of(tf.distribute.get_strategy())
    mesh = keras.distribution.DeviceMesh((4, 1), ("data", "model"))
    named = keras.distribution.ModelParallel(
        layout_map=keras.distribution.LayoutMap(mesh), batch_dim_name="examples"
    )
    with pytest.raises(ValueError, match=r"`batch_dim_name`.*'data', 'model'.*'examples'"):
        strategy_of(named)
    monkeypatch.setenv(
        "TF_CONFIG", '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}'
    )
    here = [
        f"cpu:{number}" for number in range(4)
    ]  # by default a process that called `initialize` has all devices
    with pytest.raises(ClusterError, match=r"has 4 devices.*cluster has 2"):
        strategy_of(keras.distribution.DataParallel(devices=here))


def test_pipeline_in_a_distribution_raises():
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]))
    with (
        unisono.distribute.Pipeline(["CPU:0", "CPU:1"], 2).scope(),
        pytest.raises(ValueError, match="distribution"),
    ):
        small_model()


def test_model_of_a_pipeline_is_not_said_to_be_built_outside_of_any_scope():
    with unisono.distribute.Pipeline(["CPU:0", "CPU:1"], 2).scope():
        model = small_model()
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0", "cpu:1"]))
    with pytest.raises(ValueError, match="built for a Pipeline: leave out the Pipeline, or call keras"):
        model.compile("sgd", "mse")
    keras.distribution.set_distribution(None)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        with pytest.raises(ValueError, match="built for a Pipeline"):
            model.compile("sgd", "mse")
