"""Resets metrics at the beginning of an epoch: metrics of Keras itself are set to zero without its layers of calls."""

from __future__ import annotations

import functools
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.training import CompileMetrics, MetricsList
from ...compat.keras_private.variables import is_plain, raw_value, stateless_scope

_TO_ZERO = (keras.metrics.Mean.reset_state, keras.metrics.Sum.reset_state, keras.metrics.Metric.reset_state)


def reset(metric: Any) -> None:
    """Equivalent to `metric.reset_state()`. Context: host."""
    if type(metric) in (CompileMetrics, MetricsList):
        for part in metric.metrics:
            reset(part)
        return
    own = type(metric).__module__.startswith(
        "keras.src.metrics."
    )  # its state consists of sums, which begin with 0
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
    """A number on the device of its variable: creating one takes longer than writing it."""
    with tf.init_scope(), tf.device(device):
        return tf.zeros([], dtype)
