"""`fit` of Keras 3 (on the backend that KERAS_BACKEND names) and of the older tf_keras."""

from __future__ import annotations

import importlib
import os
from typing import Any

from . import keras_models
from .fit_clock import scope_of, train_by_fit, use_logical_devices
from .task import BATCH, Task, Train

_OPTIONS: dict[str, dict[str, Any]] = {
    "keras_100": {"steps_per_execution": 100},
    "keras_xla": {"jit_compile": True},
    "keras_jax_100": {"steps_per_execution": 100},
}


def load(name: str) -> None:
    """Imports the package, so that the import can be timed."""
    importlib.import_module("tf_keras" if name == "tf_keras" else "keras")


def prepare(tf: Any, replicas: int) -> None:
    """Logical devices for TensorFlow; JAX gets them from its environment."""
    if os.environ.get("KERAS_BACKEND") != "jax":
        use_logical_devices(tf, replicas)


def make(name: str, task: Task) -> Train:
    """A new model of `task`, compiled, not yet traced."""
    keras: Any = importlib.import_module("tf_keras" if name == "tf_keras" else "keras")
    if os.environ.get("KERAS_BACKEND") == "jax":
        if task.replicas > 1:
            keras.distribution.set_distribution(keras.distribution.DataParallel())
        model = _compiled(keras, name, task)
    else:
        with scope_of(importlib.import_module("tensorflow"), task):
            model = _compiled(keras, name, task)
    return train_by_fit(keras, model, task, BATCH)


def _compiled(keras: Any, name: str, task: Task) -> Any:
    model = keras_models.build(keras, task)
    model.compile(**keras_models.compile_arguments(keras), **_OPTIONS.get(name, {}))
    return model
