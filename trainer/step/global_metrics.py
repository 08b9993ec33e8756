"""The metrics that a model can reach, and the inputs of loss metrics.

On several replicas the partition of the step (`partition/`) derives each replica's additions.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.keras_private.layers import layers_of
from ...compat.keras_private.training import (
    CompileMetrics,
    Mean,
    MetricsList,
    Sum,
    compiled_loss,
    held_metrics,
)
from ...compat.shared_change import shared_attributes
from ...distribute.step_context import StepContext, current_step


def leaf_metrics(metrics: list[Any]) -> list[Any]:
    """The metrics that have state, without duplicates: without Keras' containers, with nested metrics."""
    leaves: list[Any] = []
    for metric in metrics:
        container = isinstance(metric, CompileMetrics | MetricsList)
        inside = metric.metrics if container else held_metrics(metric)
        for leaf in [*([] if container else [metric]), *leaf_metrics(inside)]:
            if not any(leaf is other for other in leaves):
                leaves.append(leaf)
    return leaves


def metrics_of(model: TrainedModel) -> list[Any]:
    """All metrics that the model can reach: its own, those of `compile`, those of layers, and nested ones."""
    held = [metric for layer in layers_of(model) for metric in held_metrics(layer)]
    return leaf_metrics([*model.metrics, *held])


def losses_count_samples(model: TrainedModel) -> contextlib.AbstractContextManager[None]:
    """While a step is traced, the metrics that Keras updates with the loss of one output weight it with its samples.

    Keras counts each batch once where the batch size is unknown while tracing.
    """
    loss = compiled_loss(model)
    metrics = leaf_metrics([] if loss is None else loss.metrics)
    return shared_attributes("update_state", [(metric, _weighted_with_samples) for metric in metrics])


def _weighted_with_samples(original: Callable[..., Any]) -> Callable[..., Any]:
    def update_state(value: Any, sample_weight: Any = None) -> Any:
        step = current_step()
        return original(value, sample_weight=sample_weight if step is None else step.samples)

    return update_state


def numbers_of_part(metrics: list[Any], part: StepContext) -> contextlib.AbstractContextManager[None]:
    """While a worker computes a part of a batch, a single number given to `Mean` or `Sum` counts for the part's samples.

    Args:
        metrics: the model's metrics.
        part: the samples of the part, and of the batch.
    """
    means = [metric for metric in leaf_metrics(metrics) if type(metric) in (Mean, Sum)]
    make = functools.partial(_update_of_part, part=part)
    return shared_attributes("update_state", [(metric, make) for metric in means])


def _update_of_part(original: Callable[..., Any], part: StepContext) -> Callable[..., Any]:
    def update_state(values: Any, sample_weight: Any = None) -> Any:
        if not _is_one_number(values, sample_weight):
            return original(values, sample_weight=sample_weight)
        return _update_mean(original, part, values, sample_weight)

    return update_state


def as_tensors(structure: Any) -> Any:
    """The nest with the current values of variables instead of the variables."""
    return keras.tree.map_structure(
        lambda leaf: tf.convert_to_tensor(leaf) if isinstance(leaf, keras.Variable) else leaf, structure
    )


def _is_one_number(values: Any, sample_weight: Any = None) -> bool:
    """Whether `Mean` or `Sum` is given one number, and one weight for it."""
    return all(part is None or tf.convert_to_tensor(part).shape.rank == 0 for part in (values, sample_weight))


def _update_mean(original: Any, step: StepContext, values: Any, sample_weight: Any = None) -> Any:
    values = tf.convert_to_tensor(values)
    values = values if values.dtype.is_floating else tf.cast(values, tf.float32)
    if sample_weight is None:
        return original(values, sample_weight=step.share(values.dtype))
    return original(values, sample_weight=_part_of_weight(sample_weight, step))


def _part_of_weight(weight: Any, step: StepContext) -> Any:
    """This replica's part of the weight of one number.

    A weight that the program computes from its samples (their number, a count of words) belongs to the part already. A
    constant, or a number that is the same on every replica, is the weight of the whole batch.
    """
    return tf.cast(weight, tf.float32) * step.share() if _is_written(weight, step) else weight


def _is_written(weight: Any, step: StepContext) -> bool:
    if isinstance(weight, int) and not isinstance(weight, bool):
        return not (isinstance(step.samples, int) and weight == step.samples)  # x.shape[0]
    return isinstance(weight, float | keras.Variable) or (tf.is_tensor(weight) and _is_constant(weight))


def _is_constant(tensor: Any) -> bool:
    return not tf.executing_eagerly() and tensor.op.type == "Const"


def variable_ids(metrics: list[Any]) -> set[int]:
    """Ids of the metrics' variables, of which every replica writes its own copy."""
    return {id(variable) for metric in leaf_metrics(metrics) for variable in metric.variables}
