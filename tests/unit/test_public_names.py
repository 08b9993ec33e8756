"""What is exported: the names that users write, each there, each documented, and nothing loaded before it is used."""

from __future__ import annotations

import inspect
import pkgutil
import subprocess
import sys

import keras
import pytest

import unisono
from unisono import callbacks, distribute, mixed_precision, optimizers

FACE = {
    "Model",
    "Sequential",
    "__version__",
    "adopt",
    "callbacks",
    "clone_model",
    "distribute",
    "load_model",
    "mixed_precision",
    "models",
    "optimizers",
    "rowwise",
}


def test_face_is_what_the_documentation_says():
    assert set(unisono.__all__) == FACE
    assert set(dir(unisono)) == FACE
    for name in FACE:
        assert getattr(unisono, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'fit'"):
        unisono.fit  # noqa: B018


@pytest.mark.parametrize(
    ("package", "names"),
    [
        (
            distribute,
            [
                "Pipeline",
                "auto_strategy",
                "cluster_resolver",
                "global_batch_size",
                "global_mean",
                "simulate_devices",
            ],
        ),
        (mixed_precision, ["LossScaleOptimizer", "Policy", "set_global_policy"]),
        (callbacks, ["BackupAndRestore", "ModelCheckpoint", "EarlyStopping", "JSONLines", "TensorBoard"]),
        (optimizers, ["Adam", "AdamW", "SGD", "RMSprop", "Optimizer", "adopt"]),
    ],
    ids=lambda value: getattr(value, "__name__", "names"),
)
def test_packages_export_what_the_documentation_says(package, names):
    for name in names:
        assert inspect.getdoc(getattr(package, name)), f"{package.__name__}.{name} says nothing of itself"


@pytest.mark.parametrize("package", [unisono, callbacks, distribute, mixed_precision, optimizers])
def test_function_or_class_has_no_module_of_its_name_that_would_hide_it_once_imported(package):
    modules = {module.name for module in pkgutil.iter_modules(package.__path__)}
    names = [name for name in dir(package) if not inspect.ismodule(getattr(package, name))]
    assert not modules.intersection(names)


def test_methods_take_all_of_keras_arguments():
    for name in (
        "compile",
        "fit",
        "evaluate",
        "predict",
        "train_on_batch",
        "test_on_batch",
        "predict_on_batch",
    ):
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
    assert subprocess.run([sys.executable, "-c", program], timeout=120).returncode == 0
