"""`unisono.Model.fit` with `jit_compile` at its default, False and True."""

from __future__ import annotations

import keras
import tensorflow as tf

import unisono

from . import keras_models
from .fit_clock import scope_of, train_by_fit, use_logical_devices
from .task import BATCH, Task, Train

_COMPILE = {"ours": "auto", "ours_graph": False, "ours_xla": True}
prepare = use_logical_devices


def make(name: str, task: Task) -> Train:
    """A new model of `task`, compiled, not yet traced."""
    with scope_of(tf, task):
        model = keras_models.build(keras, task, unisono.Model)
        arguments = keras_models.compile_arguments(keras)
        model.compile(**arguments, jit_compile=_COMPILE[name])
    return train_by_fit(keras, model, task, BATCH)
