"""The parts of Keras' trainer that ours is made of, and what it keeps in a model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from keras.src.backend import compute_output_spec
from keras.src.backend.tensorflow.trainer import (
    TensorFlowTrainer,
    convert_to_np_if_not_ragged,
    potentially_ragged_concat,
)
from keras.src.losses.loss import squeeze_or_expand_to_same_rank
from keras.src.metrics.reduction_metrics import Mean, MeanMetricWrapper, Sum
from keras.src.models.functional import Functional as KerasFunctional
from keras.src.trainers.compile_utils import CompileLoss, CompileMetrics, MetricsList
from keras.src.trainers.data_adapters.array_slicing import train_validation_split
from keras.src.trainers.data_adapters.data_adapter_utils import (
    class_weight_to_sample_weights,
    unpack_x_y_sample_weight,
)
from keras.src.trainers.trainer import Trainer as KerasTrainer
from keras.src.trainers.trainer import model_supports_jit
from keras.src.utils import traceback_utils
from keras.src.utils.python_utils import pythonify_logs
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
    "model_supports_jit",
    "no_automatic_dependency_tracking",
    "potentially_ragged_concat",
    "pretending_built",
    "pythonify_logs",
    "squeeze_or_expand_to_same_rank",
    "train_validation_split",
    "unpack_x_y_sample_weight",
]


Function = TypeVar("Function", bound=Callable[..., Any])


def filter_traceback(function: Function) -> Function:
    """Keras' decorator, typed: editors and type checkers still see the arguments of what it decorates."""
    return cast(Function, traceback_utils.filter_traceback(function))


def compiled_loss(model: Any) -> Any | None:
    """What `compile` made of the argument `loss`: callable as `loss(y, y_pred, sample_weight)`; None without a loss."""
    return model._compile_loss


def flat_losses(model: Any) -> list[Any]:
    """The compiled loss functions of all outputs. Only after the first call of the compiled loss."""
    loss = model._compile_loss
    return [] if loss is None else [entry.loss for entry in loss._flat_losses]


@contextlib.contextmanager
def pretending_built(optimizer: Any) -> Iterator[None]:
    """Keeps Keras' symbolic build from making the variables of an optimizer that the user's step may never use."""
    object.__setattr__(optimizer, "built", True)
    try:
        yield
    finally:
        object.__setattr__(optimizer, "built", False)
