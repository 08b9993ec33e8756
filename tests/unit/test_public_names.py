"""The public API: every name exists and is documented, and nothing is loaded before it is used."""

from __future__ import annotations

import inspect
import subprocess
import sys

import keras
import numpy as np
import pytest

import unisono
from unisono import callbacks, distribute, mixed_precision, optimizers, trainer
from unisono.state.trained_model import TrainedModel

FACE = {"Model", "Sequential", "__version__", "adopt", "callbacks", "clone_model", "distribute"}
FACE |= {
    "load_model",
    "mixed_precision",
    "models",
    "optimizers",
    "replica_step",
    "rowwise",
    "synchronize_batch_norm",
}
METHODS = ["compile", "fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch"]


def test_face_is_what_the_documentation_says():
    assert set(unisono.__all__) == FACE
    assert set(dir(unisono)) == FACE
    for name in FACE:
        assert getattr(unisono, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'fit'"):
        unisono.fit  # noqa: B018


DOCUMENTED = {
    callbacks: ["BackupAndRestore", "ModelCheckpoint", "EarlyStopping", "JSONLines", "TensorBoard"],
    distribute: ["Pipeline", "auto_strategy", "global_batch_size", "global_mean", "simulate_devices"],
    mixed_precision: ["LossScaleOptimizer", "Policy", "set_global_policy"],
    optimizers: ["Adam", "AdamW", "SGD", "RMSprop", "Optimizer", "adopt"],
    trainer: [
        "Model",
        "Sequential",
        "adopt",
        "clone_model",
        "load_model",
        "replica_step",
        "rowwise",
        "synchronize_batch_norm",
    ],
}
PACKAGES = pytest.mark.parametrize("package", DOCUMENTED, ids=lambda package: package.__name__)


@PACKAGES
def test_packages_export_what_the_documentation_says(package):
    for name in DOCUMENTED[package]:
        assert name in package.__all__
        assert inspect.getdoc(getattr(package, name)), f"{package.__name__}.{name} has no docstring"


@PACKAGES
def test_packages_show_public_names_alone(package):
    assert sorted(package.__all__) == dir(package)
    for name in package.__all__:
        value = getattr(package, name)
        assert not name.startswith("_")
        assert callable(value) or name in ("cluster_resolver", "schedules"), f"{name} is a module"


@pytest.mark.long
def test_models_have_no_new_public_name_that_a_user_could_have_too():
    own = {"explain_step", "fit_state", "autograph_info__"}  # the last one is TensorFlow's mark
    assert public(unisono.Model) - public(keras.Model) == own
    trained = []
    for module in (keras, unisono):
        model = module.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.ones((4, 2))
        model.fit(x, x[:, :1], verbose=0)
        model.evaluate(x, x[:, :1], verbose=0)
        model.predict(x, verbose=0)
        trained.append(model)
    assert public(trained[1]) - public(trained[0]) == own


def public(value):
    return {name for name in dir(value) if not name.startswith("_")}


def test_methods_take_all_of_keras_arguments():
    for name in METHODS:
        theirs = inspect.signature(getattr(keras.Model, name)).parameters
        ours = inspect.signature(getattr(unisono.Model, name)).parameters
        missing = [p for p in theirs if p not in ours and p != "kwargs"]
        assert not missing, f"{name} lacks {missing}"
        same = [p for p in theirs if p in ours and p not in ("steps_per_execution", "jit_compile")]
        changed = [p for p in same if theirs[p].default != ours[p].default]
        assert not changed, f"{name} has other defaults for {changed}"
        assert list(ours)[: len(same)] == same or name == "compile", f"{name} has another order"


def test_every_optimizer_and_callback_of_keras_has_a_counterpart():
    theirs = [
        name
        for name, value in vars(keras.optimizers).items()
        if inspect.isclass(value) and issubclass(value, keras.optimizers.Optimizer)
    ]
    missing = [name for name in theirs if not hasattr(optimizers, name) and name != "LossScaleOptimizer"]
    assert not missing
    theirs = [name for name, value in vars(keras.callbacks).items() if inspect.isclass(value)]
    assert not [name for name in theirs if not hasattr(callbacks, name)]


def test_import_alone_loads_no_tensorflow():
    program = "import sys, unisono; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_models_have_all_that_the_loops_and_callbacks_use():
    model = unisono.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((4, 2), "float32")
    model.fit(x, x[:, :1], validation_data=(x, x[:, :1]), verbose=0)
    model.predict(x, verbose=0)
    used = {*vars(TrainedModel), *TrainedModel.__annotations__}
    used = {name for name in used if not name.startswith(("__", "_abc_", "_is_"))}
    assert {"fit_state", "_strategy_scope", "stop_training"} <= used
    assert not {name for name in used if not hasattr(model, name)}
