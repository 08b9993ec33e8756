"""Tools that patch `keras.Model.fit`, and third-party loggers, work with Unisono's models as with Keras'."""

import copy
import io
import json
import pathlib
import pickle
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras.src.saving import saving_lib

import unisono
from unisono.callbacks.call_schedule import steps_until_call
from unisono.callbacks.output_paths import only_chief_writes

X = np.ones((4, 2), "float32")


def compiled(package):
    model = package.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("name", ["fit", "evaluate", "predict"])
@pytest.mark.short("evaluate", "predict")
def test_patch_of_kerass_method_sees_that_of_our_models_once(name, monkeypatch):
    seen = []
    original = getattr(keras.Model, name)
    assert not hasattr(original, "__unisono_original__")  # the object that a tool loaded earlier has stored

    def patched(self, *args, **kwargs):
        seen.append(type(self))
        kwargs["verbose"] = 0
        if name == "fit":
            kwargs["callbacks"] = [
                keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: seen.append(self.fit_state))
            ]
        return original(self, *args, **kwargs)

    ours, plain = compiled(unisono), compiled(keras)
    plain.fit_state = "plain"
    arguments = (X,) if name == "predict" else (X, X[:, :1])
    monkeypatch.setattr(keras.Model, name, patched)
    results = [getattr(model, name)(*arguments) for model in (ours, plain)]
    types = [each for each in seen if isinstance(each, type)]
    assert types == [type(ours), type(plain)]
    if name == "fit":
        assert [type(each).__name__ for each in seen if not isinstance(each, type)] == ["FitState", "str"]
        assert type(results[0]) is keras.callbacks.History
    monkeypatch.undo()
    getattr(ours, name)(*arguments, verbose=0)
    assert len([each for each in seen if isinstance(each, type)]) == 2


TOOL = """
import functools, sys
import keras
import numpy as np

seen = []

def switch_on():  # as `mlflow.autolog` does
    original = keras.Model.fit

    @functools.wraps(original)
    def fit(self, *args, **kwargs):
        noted = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: seen.append(type(self).__module__))
        kwargs["callbacks"] = [*(kwargs.get("callbacks") or []), noted]
        return original(self, *args, **kwargs)

    keras.Model.fit = fit

if sys.argv[1] == "before":
    switch_on()
import unisono
if sys.argv[1] == "after import":
    switch_on()
unisono.Sequential
if sys.argv[1] == "after use":
    switch_on()
x = np.ones((4, 2), "float32")
for package in unisono, keras:
    model = package.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(x, x[:, :1], verbose=0)
    assert (getattr(model, "_auto_jit", None) is not None) == (package is unisono)
print(seen)
"""


@pytest.mark.process
@pytest.mark.short("after import")
@pytest.mark.parametrize("when", ["before", "after import", "after use"])
def test_tool_that_is_switched_on_at_any_time_sees_each_fit_once(when):
    command = [sys.executable, "-c", TOOL, when]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "['unisono.trainer.model', 'keras.src.models.sequential']\n", done.stderr


def test_methods_of_our_models_are_ours_where_no_tool_is():
    for name in ("fit", "evaluate", "predict"):
        method = getattr(unisono.Model, name)
        assert (
            method is getattr(unisono.trainer.trainer.Trainer, name)
            and "per_replica_batch_size" in method.__doc__
        )


def test_program_that_puts_our_class_in_place_of_kerass_trains(monkeypatch):
    monkeypatch.setattr(keras, "Model", unisono.Model)
    assert compiled(unisono).fit(X, X[:, :1], verbose=0).history["loss"]


def test_fit_of_a_subclass_that_calls_ours_is_seen_once(monkeypatch):
    class Own(unisono.Sequential):
        def fit(self, *args, **kwargs):
            return super().fit(*args, epochs=2, verbose=0, **kwargs)

    seen, original = [], keras.Model.fit
    monkeypatch.setattr(
        keras.Model, "fit", lambda self, *a, **k: seen.append(k["epochs"]) or original(self, *a, **k)
    )
    model = Own([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert len(model.fit(X, X[:, :1]).history["loss"]) == 2
    assert seen == [2]


@pytest.mark.parametrize("chief", [True, False])
def test_loggers_of_others_are_called_on_the_chief_alone(chief):
    calls = []
    hooks = {
        "on_epoch_end": lambda self, epoch, logs=None: calls.append(epoch),
        "on_train_batch_end": lambda self, batch, logs=None: None,
        "__module__": "wandb.integration",
    }
    logger = type("WandbMetricsLogger", (keras.callbacks.Callback,), hooks)()
    inherited = type("OfMine", (type(logger),), {})()
    with only_chief_writes([logger, inherited], chief):
        for callback in (logger, inherited):
            callback.set_model(None)
            callback.on_epoch_end(3, {})
            assert chief or steps_until_call(callback, 0) is None, "others do not wait for it"
    assert calls == ([3, 3] if chief else [])
    logger.on_epoch_end(4, {})
    assert calls[-1] == 4


def made_of_bytes(content):
    return saving_lib.load_model(io.BytesIO(content), compile=True)


def made_of_config(config):
    return keras.optimizers.deserialize(config)


def test_tool_that_pickles_by_its_own_method_copies_our_models_as_ours(monkeypatch):
    """As scikeras does: it replaces how `keras.Model` and the optimizers are pickled and copied."""

    def reduced(model):
        content = io.BytesIO()
        saving_lib.save_model(model, content)
        return made_of_bytes, (np.asarray(memoryview(content.getvalue())),)

    monkeypatch.setattr(keras.Model, "__reduce__", reduced)
    monkeypatch.setattr(
        keras.Model, "__deepcopy__", lambda model, memo: made_of_bytes(*reduced(model)[1]), raising=False
    )
    monkeypatch.setattr(
        keras.optimizers.Optimizer,
        "__reduce__",
        lambda optimizer: (made_of_config, (keras.optimizers.serialize(optimizer),)),
    )
    model = compiled(unisono)
    model.fit(X, X[:, :1], verbose=0)
    for other in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert isinstance(other, unisono.Model) and isinstance(other.optimizer, unisono.optimizers.Optimizer)
        np.testing.assert_array_equal(other.predict(X, verbose=0), model.predict(X, verbose=0))
    assert isinstance(pickle.loads(pickle.dumps(model.optimizer)), unisono.optimizers.SGD)


@pytest.mark.parametrize("kind", [keras.callbacks.TensorBoard, unisono.callbacks.TensorBoard])
def test_profile_of_a_worker_is_kept_next_to_that_of_the_chief(kind, tmp_path, monkeypatch):
    task = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(task))
    folder = tmp_path / "logs" / "train" / "plugins" / "profile" / "2026_01_01"
    folder.mkdir(parents=True)
    (folder / "host.xplane.pb").write_text("the chief's")
    callback = kind(str(tmp_path / "logs"))
    with only_chief_writes([callback], chief=False):
        own = pathlib.Path(callback.log_dir) / "train" / "plugins" / "profile" / "2026_01_01"
        own.mkdir(parents=True)
        (own / "host.xplane.pb").write_text("its own")
        (own.parents[2] / "events").write_text("not kept")
    files = {path.name: path.read_text() for path in (tmp_path / "logs").rglob("*") if path.is_file()}
    assert files == {"host.xplane.pb": "the chief's", "worker-1.host.xplane.pb": "its own"}
    assert callback.log_dir == str(tmp_path / "logs")
