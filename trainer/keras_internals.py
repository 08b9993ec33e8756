"""Everything private of Keras that the trainer touches; `tests/unit/test_keras_internals.py` fails when one changes.

The functions of Keras that are replaced stand in `replaced_keras_internals.py`.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.api_export import REGISTERED_NAMES_TO_OBJS, REGISTERED_OBJS_TO_NAMES
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow.trainer import (
    TensorFlowTrainer,
    convert_to_np_if_not_ragged,
    potentially_ragged_concat,
)
from keras.src.losses import loss as loss_module
from keras.src.metrics.reduction_metrics import Mean, MeanMetricWrapper, Sum
from keras.src.models.functional import Functional as KerasFunctional
from keras.src.saving import object_registration, serialization_lib
from keras.src.trainers.compile_utils import CompileLoss, CompileMetrics, MetricsList
from keras.src.trainers.data_adapters.array_slicing import train_validation_split
from keras.src.trainers.data_adapters.data_adapter_utils import (
    class_weight_to_sample_weights,
    unpack_x_y_sample_weight,
)
from keras.src.trainers.trainer import Trainer as KerasTrainer
from keras.src.trainers.trainer import model_supports_jit
from keras.src.utils.python_utils import pythonify_logs
from keras.src.utils.traceback_utils import filter_traceback
from keras.src.utils.tracking import no_automatic_dependency_tracking

__all__ = [
    "CompileLoss",
    "CompileMetrics",
    "KerasFunctional",
    "KerasTrainer",
    "Mean",
    "MeanMetricWrapper",
    "MetricsList",
    "Sum",
    "TensorFlowTrainer",
    "class_weight_to_sample_weights",
    "compiled_loss",
    "compute_output_spec",
    "convert_to_np_if_not_ragged",
    "filter_traceback",
    "flat_losses",
    "forget_losses",
    "get_keras_mask",
    "global_seed_generator",
    "model_supports_jit",
    "no_automatic_dependency_tracking",
    "potentially_ragged_concat",
    "pretending_built",
    "pythonify_logs",
    "register_as",
    "save_as",
    "scratch_graph",
    "serialization_lib",
    "set_keras_mask",
    "squeeze_or_expand_to_same_rank",
    "thread_state",
    "train_validation_split",
    "unpack_x_y_sample_weight",
    "without_layer_losses",
]

global_seed_generator = keras.src.random.seed_generator.global_seed_generator
compute_output_spec = keras.src.backend.compute_output_spec
squeeze_or_expand_to_same_rank = loss_module.squeeze_or_expand_to_same_rank
get_keras_mask = keras.src.backend.get_keras_mask
set_keras_mask = keras.src.backend.set_keras_mask


def save_as(cls: type, keras_class: type) -> None:
    """Has Keras write objects of `cls` into files as `keras_class`, so that plain Keras opens them without us."""
    name = REGISTERED_OBJS_TO_NAMES[keras_class]
    REGISTERED_OBJS_TO_NAMES[cls] = name
    assert REGISTERED_NAMES_TO_OBJS[name] is keras_class


class thread_state:
    """Keras' global state of this thread, for the threads in which MirroredStrategy runs its replicas.

    `state = thread_state()` in the calling thread; `state.enter()` in the other one. Without it a replica's thread
    would draw unseeded random numbers from a generator of its own and follow another dtype policy.
    """

    def __init__(self) -> None:
        drawn = (
            random.getstate()
        )  # on one device the generator is made, from a random seed, only where one is used
        global_seed_generator()
        random.setstate(drawn)
        self._attributes = dict(vars(global_state.GLOBAL_STATE_TRACKER))

    def enter(self) -> None:
        """Gives this thread the state that was captured; what the thread has itself stays."""
        own = vars(global_state.GLOBAL_STATE_TRACKER)
        for name, value in self._attributes.items():
            if name not in ("stateless_scope", "symbolic_scope", "name_scope_stack"):
                own.setdefault(name, value)


def forget_losses(model: Any, losses: list[Any]) -> None:
    """Layers drop the added losses of a step that has been traced (their ids may be given to other tensors)."""
    ids = {id(loss) for loss in losses}
    for layer in model._flatten_layers():
        layer._loss_ids.difference_update(ids)


def compiled_loss(model: Any) -> Any | None:
    """What `compile` made of the argument `loss`: callable as `loss(y, y_pred, sample_weight)`; None without a loss."""
    return model._compile_loss


def flat_losses(model: Any) -> list[Any]:
    """The compiled loss functions of all outputs. Only after the first call of the compiled loss."""
    loss = model._compile_loss
    return [] if loss is None else [entry.loss for entry in loss._flat_losses]


@contextlib.contextmanager
def without_layer_losses(model: Any) -> Iterator[None]:
    """Within it `model.losses` is a single zero (Keras reads an empty override as none)."""
    before = model._losses_override
    model._losses_override = [tf.zeros((), keras.config.floatx())]
    try:
        yield
    finally:
        model._losses_override = before


def register_as(cls: type, original: type) -> None:
    """Files written from `cls` name `original`: the Keras class, or the class that a user registered."""
    if original in REGISTERED_OBJS_TO_NAMES:
        save_as(cls, original)
    if original in object_registration.GLOBAL_CUSTOM_NAMES:
        object_registration.GLOBAL_CUSTOM_NAMES[cls] = object_registration.GLOBAL_CUSTOM_NAMES[original]


@contextlib.contextmanager
def scratch_graph() -> Iterator[None]:
    """A graph that is thrown away: for reading structure from code that creates operations."""
    with tf.__internal__.FuncGraph("scratch").as_default():
        yield


@contextlib.contextmanager
def pretending_built(optimizer: Any) -> Iterator[None]:
    """Keeps Keras' symbolic build from making the variables of an optimizer that the user's step may never use."""
    object.__setattr__(optimizer, "built", True)
    try:
        yield
    finally:
        object.__setattr__(optimizer, "built", False)
