"""The compiled metrics: Keras' own and custom ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from .losses import across, as_wide, rows


def scalar(y_true, y_pred):
    """One value for the batch."""
    return across(y_true, y_pred)


class OwnMetric(keras.metrics.Metric):
    """A weighted mean with hand-written counts."""

    def __init__(self, name="own_metric", **arguments):
        super().__init__(name=name, **arguments)
        self.total = self.add_weight(shape=(), initializer="zeros", name="total")
        self.count = self.add_weight(shape=(), initializer="zeros", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        values = ops.cast(rows(y_true, y_pred), self.dtype)
        weight = ops.ones_like(values)
        if sample_weight is not None:
            weight = weight * as_wide(sample_weight, values)
        self.total.assign_add(ops.sum(values * weight))
        self.count.assign_add(ops.sum(weight))

    def result(self):
        return ops.divide_no_nan(self.total, self.count)


class OwnMaximum(keras.metrics.Metric):
    """Not a sum over replicas."""

    def __init__(self, name="own_maximum", **arguments):
        super().__init__(name=name, **arguments)
        self.largest = self.add_weight(shape=(), initializer="zeros", name="largest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        error = ops.max(ops.abs(ops.cast(y_true, y_pred.dtype) - y_pred))
        self.largest.assign(ops.maximum(self.largest, ops.cast(error, self.dtype)))

    def result(self):
        return 1.0 * self.largest


class MetricWithLoss(keras.metrics.Mean):
    """Calls a Loss object without reduction, as the perplexity metric of KerasHub does."""

    def __init__(self, name="metric_with_loss", **arguments):
        super().__init__(name=name, **arguments)
        self.loss = keras.losses.MeanSquaredError(reduction="sum")

    def update_state(self, y_true, y_pred, sample_weight=None):
        count = ops.cast(ops.size(y_pred), self.dtype)
        super().update_state(ops.cast(self.loss(y_true, y_pred), self.dtype) / count, sample_weight=count)


METRICS: dict[str, Callable[[], Any]] = {
    "CosineSimilarity over samples": lambda: keras.metrics.CosineSimilarity(axis=0),
    "PearsonCorrelation over samples": lambda: keras.metrics.PearsonCorrelation(axis=0),
    "ConcordanceCorrelation over samples": lambda: keras.metrics.ConcordanceCorrelation(axis=0),
    "Loss object": lambda: keras.losses.MeanSquaredError(name="loss_object"),
    "Loss object sum": lambda: keras.losses.MeanSquaredError(reduction="sum", name="loss_object_sum"),
    "rows": lambda: rows,
    "scalar": lambda: scalar,
    "own Metric": OwnMetric,
    "own maximum": OwnMaximum,
    "own Metric with a loss": MetricWithLoss,
    "SparseCategoricalCrossentropy": lambda: keras.metrics.SparseCategoricalCrossentropy(from_logits=True),
    "SparseTopKCategoricalAccuracy": lambda: keras.metrics.SparseTopKCategoricalAccuracy(k=2),
    "AUC": lambda: keras.metrics.AUC(num_thresholds=11),
}


def metric(name: str) -> Any:
    """The metric compiled for a name."""
    if name in METRICS:
        return METRICS[name]()
    return getattr(keras.metrics, name)() if name[0].isupper() else name
