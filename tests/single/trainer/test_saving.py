"""Saved models load in plain Keras without Unisono, continue with the same results, and move to other strategies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import helpers
import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono

X = np.random.default_rng(0).normal(size=(10, 3)).astype("float32")
Y = np.random.default_rng(1).normal(size=(10, 2)).astype("float32")
IMAGE = np.random.default_rng(2).uniform(size=(2, 32, 32, 3)).astype("float32")


@keras.saving.register_keras_serializable("tests")
class Registered(keras.Model):
    """A subclassed model registered for serialization."""

    def __init__(self, units: int = 4, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.hidden = keras.layers.Dense(units, activation="tanh")
        self.out = keras.layers.Dense(2)

    def call(self, x):
        return self.out(self.hidden(x))

    def get_config(self):
        return {**super().get_config(), "units": self.units}


def sequential() -> Any:
    hidden, last = keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(2, name="last")
    return unisono.Sequential([keras.Input((3,)), hidden, last])


def functional() -> Any:
    inputs = keras.Input((3,))
    return unisono.Model(inputs, keras.layers.Dense(2)(keras.layers.BatchNormalization()(inputs)))


def registered() -> Any:
    model = unisono.adopt(Registered())
    model(X)
    return model


def mobilenet() -> keras.Model:
    return keras.applications.MobileNet((32, 32, 3), alpha=0.25, weights=None, classes=3)


BUILDERS = {"sequential": sequential, "functional": functional, "registered": registered}


def compiled(model: Any, eager: bool = True, **arguments: Any) -> Any:
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], run_eagerly=eager, **arguments)
    return model


def fit(model: Any, **arguments: Any) -> dict[str, Any]:
    return model.fit(X, Y, batch_size=4, shuffle=False, verbose=0, **arguments).history


# Loads every model in the arguments, and prints its predictions and the imported modules.
PLAIN_KERAS = """
import json, sys
import numpy as np, keras
@keras.saving.register_keras_serializable("tests")
class Registered(keras.Model):
    def __init__(self, units=4, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.hidden = keras.layers.Dense(units, activation="tanh")
        self.out = keras.layers.Dense(2)
    def call(self, x):
        return self.out(self.hidden(x))
result = {}
for path in sys.argv[2:]:
    model = keras.saving.load_model(path)
    data = np.load(sys.argv[1])
    name = "image" if "mobilenet" in path else "x"
    result[path] = {
        "class": type(model).__name__,
        "module": type(model).__module__,
        "eager": setattr(model, "run_eagerly", True),
        "outputs": np.asarray(model(data[name])).tolist(),
        "trains": [float(v) for v in np.ravel(model.train_on_batch(data["x"], data["y"]))] if name == "x" else [],
    }
print("RESULT", json.dumps({"models": result, "unisono": [m for m in sys.modules if m.split(".")[0] == "unisono"]}))
"""


@pytest.mark.process
@pytest.mark.long
@pytest.mark.parametrize("size", ["small", "large"])
def test_models_open_in_plain_keras_that_has_never_heard_of_us(size, tmp_path):
    if size == "small":
        models = {name: compiled(make()) for name, make in BUILDERS.items()}
        with helpers.mirrored(2).scope():
            models["mirrored"] = compiled(sequential())
    else:
        models = {"mobilenet": unisono.adopt(mobilenet())}
    expected = {}
    for name, model in models.items():
        if name != "mobilenet":
            fit(model)
        model.save(tmp_path / f"{name}.keras")
        expected[name] = np.asarray(model(IMAGE if name == "mobilenet" else X, training=False))
    np.savez(tmp_path / "data.npz", x=X, y=Y, image=IMAGE)
    paths = {name: str(tmp_path / f"{name}.keras") for name in models}
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", PLAIN_KERAS, str(tmp_path / "data.npz"), *paths.values()]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.partition("RESULT ")[2].splitlines()[0])
    assert said["unisono"] == []
    for name, path in paths.items():
        got = said["models"][path]
        assert not got["module"].startswith("unisono")
        helpers.assert_close(np.asarray(got["outputs"]), expected[name], helpers.FLOAT32, name)
        if name != "mobilenet":
            trained = models[name].train_on_batch(X, Y)
            helpers.assert_close(got["trains"], trained, helpers.FLOAT32, f"{name} goes on training")


@pytest.mark.short("registered")
@pytest.mark.parametrize("build", [sequential, functional, registered], ids=lambda build: build.__name__)
def test_loaded_model_goes_on_with_the_same_numbers(build, tmp_path):
    model = compiled(build(), eager=build is not sequential)
    fit(model, epochs=2)
    model.save(tmp_path / "model.keras")
    with helpers.mirrored(3).scope():
        moved = unisono.load_model(tmp_path / "model.keras")
    loaded = unisono.load_model(tmp_path / "model.keras")
    assert isinstance(loaded, unisono.Model)
    expected = fit(model, epochs=2)
    # The BatchNormalization of the functional model is not synchronized.
    for other in (loaded,) if build is functional else (loaded, moved):
        helpers.assert_close(fit(other, epochs=2), expected, helpers.FLOAT32, "history")
        helpers.assert_close(other.get_weights(), model.get_weights(), helpers.FLOAT32, "weights")


def test_compile_arguments_survive(tmp_path):
    auto = compiled(sequential(), eager=False)
    fixed = compiled(sequential(), eager=False, steps_per_execution=3, jit_compile=False)
    for model, name in ((auto, "auto"), (fixed, "fixed")):
        fit(model)
        model.save(tmp_path / f"{name}.keras")
    auto, fixed = (unisono.load_model(tmp_path / f"{name}.keras") for name in ("auto", "fixed"))
    assert auto._auto_steps and auto._auto_jit
    assert not fixed._auto_steps and not fixed._auto_jit
    assert fixed.steps_per_execution == 3 and fixed.jit_compile is False
    assert isinstance(fixed.optimizer, unisono.optimizers.Adam)
    assert fixed.loss == "mse"
    assert list(fixed.evaluate(X, Y, verbose=0, return_dict=True)) == ["loss", "mae"]
    assert not unisono.load_model(tmp_path / "auto.keras", compile=False).compiled


@pytest.mark.parametrize("on_gpu", [False, True])
def test_xla_that_keras_chose_on_a_gpu_is_no_choice_of_the_user(monkeypatch, on_gpu):
    """Keras keeps only the outcome: True, also where a GPU made it the default."""
    plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    plain.compile("sgd", "mse", jit_compile=True)
    if on_gpu:
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: ["GPU:0"])
    model = unisono.adopt(plain)
    assert (model._auto_jit, model.jit_compile) == (on_gpu, not on_gpu)


def test_weights_move_between_replica_counts(tmp_path):
    model = compiled(sequential())
    fit(model)
    model.save_weights(tmp_path / "model.weights.h5")
    with helpers.mirrored(2).scope():
        other = sequential()
    other.load_weights(tmp_path / "model.weights.h5")
    helpers.assert_equal(model.get_weights(), other.get_weights())


@pytest.mark.long
def test_checkpoint_moves_between_replica_counts(tmp_path):
    """1 -> 3 -> 2 replicas, a few steps on each, compared with the same steps on a single device."""
    alone = compiled(sequential())
    start = alone.get_weights()
    expected = [fit(alone)["loss"] for _ in range(3)]
    path = ""
    for index, replicas in enumerate((1, 3, 2)):
        with helpers.mirrored(replicas).scope():
            model = compiled(sequential())
            model.optimizer.build(model.trainable_variables)
        model.set_weights(start)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        if path:
            checkpoint.read(path).assert_existing_objects_matched()
        helpers.assert_close(fit(model)["loss"], expected[index], helpers.FLOAT32, f"{replicas} replicas")
        path = checkpoint.write(str(tmp_path / f"from_{replicas}"))
    helpers.assert_close(model.get_weights(), alone.get_weights(), helpers.FLOAT32, "weights")


@pytest.mark.parametrize("strategy", ["none", "mirrored2"])
@pytest.mark.short("none")
def test_export_serves_the_same_outputs(strategy, tmp_path):
    with helpers.scope(helpers.strategy(strategy)):
        model = compiled(sequential())
    fit(model)
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(str(tmp_path / "served"))
    helpers.assert_close(served.serve(X), model.predict(X, verbose=0), helpers.FLOAT32)


def test_clone_is_a_model_of_ours_with_weights_of_its_own():
    model = compiled(sequential())
    fit(model)
    with helpers.mirrored(2).scope():
        clone = unisono.clone_model(model)
        compiled(clone)
    clone.set_weights(model.get_weights())
    helpers.assert_close(clone.predict(X, verbose=0), model.predict(X, verbose=0), helpers.FLOAT32)
    before = model.get_weights()
    fit(clone)
    helpers.assert_equal(before, model.get_weights())
    assert type(keras.models.clone_model(model)).__name__ == "Sequential"


@pytest.mark.long
def test_adopted_model_trains_as_itself_and_keeps_what_it_was():
    keras.utils.set_random_seed(4)
    theirs = compiled(keras.Sequential(sequential().layers))
    weights = theirs.get_weights()
    expected = fit(theirs, epochs=2)
    keras.utils.set_random_seed(4)
    ours = keras.Sequential([keras.Input((3,)), *sequential().layers])
    ours.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    assert unisono.adopt(ours) is ours and unisono.adopt(ours) is ours
    ours.set_weights(weights)
    helpers.assert_close(fit(ours, epochs=2), expected, helpers.FLOAT32)
    assert isinstance(ours, keras.Sequential) and isinstance(ours, unisono.Model)


@pytest.mark.long
def test_metrics_that_a_function_of_keras_has_built_are_those_of_one_device_after_adoption():
    """The counts of before are parts of a sum on replicas, so that no more than one copy has them."""
    x = np.random.default_rng(1).normal(size=(12, 4)).astype("float32")
    y = (x[:, :1] > 0).astype("float32")

    def logs(home):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae", keras.metrics.FalseNegatives(0.5)], jit_compile=False)
        model.train_on_batch(x, y)
        with helpers.scope(home):
            model = unisono.adopt(model)
        before = model.get_metrics_result()
        return before, model.fit(x, y, batch_size=6, shuffle=False, verbose=0).history

    expected = logs(None)
    for replicas in (2, 3):
        helpers.assert_close(logs(helpers.mirrored(replicas)), expected, 1e-5)


@pytest.mark.long
def test_mobilenet_is_adopted_and_trains_on_two_replicas():
    with helpers.mirrored(2).scope():
        model = unisono.adopt(mobilenet())
        model.compile("sgd", "sparse_categorical_crossentropy", run_eagerly=True)
    before = model.get_weights()
    logs = model.train_on_batch(np.concatenate([IMAGE, IMAGE[:1]]), np.array([0, 1, 2]), return_dict=True)
    assert np.isfinite(logs["loss"])
    assert any(np.abs(a - b).max() > 0 for a, b in zip(before, model.get_weights()))
