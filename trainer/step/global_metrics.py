"""The metrics that a model can reach: their reset, and the inputs of loss metrics.

On several replicas the partition of the step (`partition/`) derives each replica's additions.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.layers import layers_of
from ...compat.keras_private.training import compiled_loss, find_held_metrics
from ...compat.keras_private.variables import is_plain, raw_value, stateless_scope
from ...compat.shared_change import share_attributes
from ...compat.upstream_places import CompileMetrics, MetricsList
from ...distribute.step_context import current_step
from ...state.trained_model import TrainedModel

_TO_ZERO = (keras.metrics.Mean.reset_state, keras.metrics.Sum.reset_state, keras.metrics.Metric.reset_state)


def leaf_metrics(metrics: list[Any]) -> list[Any]:
    """Return the metrics that have state, without duplicates: without Keras' containers, with nested metrics."""
    leaves: list[Any] = []
    for metric in metrics:
        container = isinstance(metric, CompileMetrics | MetricsList)
        inside = metric.metrics if container else find_held_metrics(metric)
        for leaf in [*([] if container else [metric]), *leaf_metrics(inside)]:
            if not any(leaf is other for other in leaves):
                leaves.append(leaf)
    return leaves


def metrics_of(model: TrainedModel) -> list[Any]:
    """Return all metrics that the model can reach: its own, those of `compile`, those of layers, and nested ones."""
    held = [metric for layer in layers_of(model) for metric in find_held_metrics(layer)]
    return leaf_metrics([*model.metrics, *held])


def losses_count_samples(model: TrainedModel) -> contextlib.AbstractContextManager[None]:
    """Let Keras weight the losses of single outputs by samples inside, where it would count each batch once."""
    loss = compiled_loss(model)
    metrics = leaf_metrics([] if loss is None else loss.metrics)
    return share_attributes("update_state", [(metric, _weight_with_samples) for metric in metrics])


def _weight_with_samples(original: Callable[..., Any]) -> Callable[..., Any]:
    def update_state(value: Any, sample_weight: Any = None) -> Any:
        step = current_step()
        return original(value, sample_weight=sample_weight if step is None else step.samples)

    return update_state


def as_tensors(structure: Any) -> Any:
    """Return the nest with the current values of variables instead of the variables."""
    return keras.tree.map_structure(
        lambda leaf: tf.convert_to_tensor(leaf) if isinstance(leaf, keras.Variable) else leaf, structure
    )


def reset(metric: Any) -> None:
    """Do the same as `metric.reset_state()`, for metrics of Keras itself without its layers of calls. Context: host."""
    if type(metric) in (CompileMetrics, MetricsList):
        for part in metric.metrics:
            reset(part)
        return
    own = type(metric).__module__.startswith("keras.src.metrics.")  # its state is sums, which begin with 0
    stock = own and type(metric).reset_state in _TO_ZERO and "reset_state" not in vars(metric)
    variables = [raw_value(variable) for variable in metric.variables] if stock else []
    if not stock or stateless_scope() is not None or not all(map(is_plain, variables)):
        metric.reset_state()
        return
    for variable in variables:
        zeros = (
            _zero(variable.dtype, variable.device) if variable.shape.rank == 0 else tf.zeros_like(variable)
        )
        variable.assign(zeros, read_value=False)


@functools.lru_cache(maxsize=100)
def _zero(dtype: tf.DType, device: str) -> tf.Tensor:
    """Return a number on the device of its variable: creating one takes longer than writing it."""
    with tf.init_scope(), tf.device(device):
        return tf.zeros([], dtype)
