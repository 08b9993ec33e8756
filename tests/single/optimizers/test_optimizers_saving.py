"""Adoption and saving: models saved with Unisono's optimizers load in plain Keras without it, and vice versa."""

import copy
import io
import json
import pickle
import subprocess
import sys
import zipfile

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_equal

from unisono import optimizers


class HalfStep(keras.optimizers.Optimizer):
    """A custom update rule, with optimizer state and an option."""

    def __init__(self, learning_rate=0.1, power=1.0, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.power = power

    def build(self, variables):
        super().build(variables)
        self.sums = self.add_optimizer_variables(variables, "sum")

    def update_step(self, gradient, variable, learning_rate):
        total = self.sums[self._get_variable_index(variable)]
        self.assign_add(total, gradient)
        total.assign(total * 1.0)  # Keras' own assignment, not the optimizer's
        self.assign_sub(variable, total * self.power * learning_rate / 2)

    def get_config(self):
        return {**super().get_config(), "power": self.power}


def step(optimizer, variable, times=1):
    for _ in range(times):
        optimizer.apply_gradients([(tf.constant([1.0, -2.0]), variable)])
    return variable.numpy()


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.Adam(0.1, use_ema=True, ema_overwrite_frequency=2),
        lambda: HalfStep(weight_decay=0.1),
    ],
    ids=["keras", "own"],
)
@pytest.mark.parametrize("steps_before", [0, 3])
def test_adopted_instance_goes_on_where_it_stood(make, steps_before):
    plain_variable, variable = keras.Variable([1.0, 2.0]), keras.Variable([1.0, 2.0])
    plain, optimizer = make(), make()
    step(plain, plain_variable, steps_before)
    step(optimizer, variable, steps_before)
    original, slots = type(optimizer), optimizer.variables
    assert optimizers.adopt(optimizer) is optimizer and optimizers.adopt(optimizer) is optimizer
    assert isinstance(optimizer, original) and isinstance(optimizer, optimizers.Optimizer)
    assert all(a is b for a, b in zip(slots, optimizer.variables))
    np.testing.assert_allclose(step(optimizer, variable, 3), step(plain, plain_variable, 3), rtol=1e-6)
    assert type(optimizer) is type(optimizers.adopt(make()))


def test_adopted_in_the_middle_of_an_accumulation():
    a, b = keras.Variable([1.0, 2.0]), keras.Variable([1.0, 2.0])
    plain, optimizer = (keras.optimizers.SGD(0.1, gradient_accumulation_steps=3) for _ in range(2))
    step(plain, a, 2)
    step(optimizer, b, 2)
    np.testing.assert_allclose(step(optimizers.adopt(optimizer), b, 1), step(plain, a, 1), rtol=1e-6)


def test_transformers_can_be_given_to_an_adopted_instance():
    optimizer = optimizers.adopt(keras.optimizers.SGD(1.0))
    optimizer.gradient_transformers = [optimizers.ClipByValue(0.5)]
    assert step(optimizer, keras.Variable([0.0, 0.0])).tolist() == [-0.5, 0.5]
    assert optimizers.serialize(optimizer)["registered_name"] == "unisono>SGD"
    assert isinstance(optimizers.adopt("adam"), optimizers.Adam)
    with pytest.raises(ValueError, match=r"Could not interpret|Unknown|Could not locate"):
        optimizers.adopt("adamant")


@pytest.mark.parametrize("name", ["Adam", "AdamW", "SGD", "Muon"])
def test_configuration_is_that_of_keras(name):
    ours, plain = getattr(optimizers, name)(name="o"), getattr(keras.optimizers, name)(name="o")
    assert optimizers.serialize(ours) == keras.optimizers.serialize(plain)
    assert optimizers.serialize(optimizers.adopt(plain)) == optimizers.serialize(ours)
    assert type(keras.optimizers.deserialize(optimizers.serialize(ours))) is getattr(keras.optimizers, name)
    assert type(optimizers.deserialize(optimizers.serialize(ours))) is getattr(optimizers, name)


def test_own_registered_class_is_saved_as_itself():
    @keras.saving.register_keras_serializable("test")
    class Registered(HalfStep):
        pass

    config = optimizers.serialize(optimizers.adopt(Registered(power=2.0)))
    assert config["registered_name"] == "test>Registered"
    again = keras.optimizers.deserialize(config)
    assert type(again) is Registered and again.power == 2.0


@pytest.mark.parametrize(
    "copier", [copy.deepcopy, lambda o: pickle.loads(pickle.dumps(o))], ids=["copy", "pickle"]
)
def test_copies_keep_the_pipeline(copier):
    for optimizer in (optimizers.Adam(0.2), optimizers.SGD(gradient_transformers=[optimizers.centralize])):
        again = copier(optimizer)
        assert isinstance(again, optimizers.Optimizer) and again.get_config() == optimizer.get_config()


def model_with(optimizer):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(optimizer, "mse")
    return model


def data():
    numbers = np.random.default_rng(0)
    return numbers.normal(size=(8, 3)).astype("float32"), numbers.normal(size=(8, 2)).astype("float32")


OPEN_WITHOUT_US = """
import json, sys
import keras, numpy as np
model = keras.models.load_model(sys.argv[1])
numbers = np.random.default_rng(0)
x, y = numbers.normal(size=(8, 3)).astype("float32"), numbers.normal(size=(8, 2)).astype("float32")
before = [v.numpy().tolist() for v in model.optimizer.variables]
model.fit(x, y, batch_size=8, epochs=4, verbose=0, shuffle=False)
assert not [name for name in sys.modules if name.startswith("unisono")], "it must open without us"
print(json.dumps([type(model.optimizer).__module__, before, [w.tolist() for w in model.get_weights()]]))
"""


@pytest.mark.long
@pytest.mark.process
def test_model_saved_with_our_optimizer_opens_in_plain_keras_and_goes_on(tmp_path):
    options = {"learning_rate": 0.1, "clipnorm": 0.5, "gradient_accumulation_steps": 2}
    x, y = data()
    model = model_with(optimizers.Adam(**options))
    model.fit(x, y, batch_size=8, epochs=4, verbose=0, shuffle=False)
    # The last, a weight carried over, is 0 between updates.
    *state, _ = [v.numpy() for v in model.optimizer.variables]
    model.save(tmp_path / "model.keras")
    command = [sys.executable, "-c", OPEN_WITHOUT_US, str(tmp_path / "model.keras")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    module, loaded, weights = json.loads(done.stdout.splitlines()[-1])
    assert module == "keras.src.optimizers.adam"
    for a, b in zip(loaded, state, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    model.fit(x, y, batch_size=8, epochs=4, verbose=0, shuffle=False)
    for a, b in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_state_in_the_middle_of_an_accumulation_makes_the_round_trip(tmp_path):
    x, y = data()
    results = []
    for interrupted in (False, True):
        keras.utils.set_random_seed(3)
        model = model_with(optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=4))
        model.fit(x, y, batch_size=8, epochs=6, verbose=0, shuffle=False)
        if interrupted:
            model.save(tmp_path / "model.keras")
            model = keras.models.load_model(tmp_path / "model.keras", compile=False)
            optimizer = optimizers.SGD(0.1, momentum=0.9, gradient_accumulation_steps=4)
            model.compile(optimizer, "mse")
            optimizer.build(model.trainable_variables)
            optimizer.load_own_variables(model_state(tmp_path / "model.keras"))
            assert optimizer.accumulated_weight.numpy() == 2.0
        model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False)
        results.append(model.get_weights())
    assert_equal(*results)


def model_state(path):
    """The optimizer state in a saved model."""
    with zipfile.ZipFile(path) as archive, h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
        return {key: value[()] for key, value in file["optimizer/vars"].items()}


def test_checkpoint_of_tensorflow_holds_the_optimizer_state(tmp_path):
    v, w = keras.Variable([1.0, 2.0]), keras.Variable([1.0, 2.0])
    first, second = (optimizers.Adam(0.1, gradient_accumulation_steps=2) for _ in range(2))
    step(first, v, 3)
    path = tf.train.Checkpoint(optimizer=first).write(str(tmp_path / "checkpoint"))
    second.build([w])
    tf.train.Checkpoint(optimizer=second).read(path).assert_existing_objects_matched()
    assert_equal(first.variables, second.variables)
