"""Which updates of a metric each replica can make with its own rows, so that sums over the replicas are its state."""

from __future__ import annotations

import sys
from typing import Any

import keras
import tensorflow as tf

from ...compat.training import Mean, MeanMetricWrapper, Sum, function_of, settings_of

_ACROSS_ROWS = ("dice", "tversky", "circle")
_NAMES = ("y_true", "y_pred", "sample_weight")


def own_rows_suffice(metric: keras.metrics.Metric, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether `metric.update_state(*args, **kwargs)` adds up numbers that it makes of each row by itself.

    Args:
        metric: any metric.
        args: tensors of this replica, with their ranks.
        kwargs: the same.
    """
    if getattr(metric, "_unisono_rowwise", False):
        return not (
            isinstance(metric, MeanMetricWrapper) and isinstance(function_of(metric), keras.losses.Loss)
        )
    if not is_stock(metric):
        return False
    if type(metric) in (Mean, Sum):
        values, weight = _parts(("values", "sample_weight"), args, kwargs)
        return not _holds_numbers(values) and not (weight is not None and _rank(weight) == 0)
    y_true, y_pred, weight = _parts(_NAMES, args, kwargs)
    if isinstance(metric, Mean) and weight is not None and _rank(weight) == 0:
        return False  # weighs the mean of the batch
    rank = _rank(y_pred)
    if isinstance(metric, MeanMetricWrapper):
        fn = function_of(metric)
        if getattr(fn, "_unisono_rowwise", False) and not isinstance(fn, keras.losses.Loss):
            return True
        return is_stock_function(fn) and rank != 1 and not _reaches_rows(settings_of(metric), rank)
    if isinstance(metric, keras.metrics.IoU):
        sparse = metric.sparse_y_true, metric.sparse_y_pred
        parts = [part for part, skipped in zip((y_true, y_pred), sparse) if not skipped]
        return not any(_reaches_rows({"axis": metric.axis}, _rank(part)) for part in parts)
    return rank != 1 or getattr(metric, "top_k", None) is None


def is_stock(metric: Any) -> bool:
    """Whether the metric's class is Keras' own: then its state is sums, which begin with 0."""
    return type(metric).__module__.startswith("keras.src.metrics.")


def is_stock_function(fn: Any) -> bool:
    """Whether it is a function of Keras that gives numbers for each row."""
    module, name = getattr(fn, "__module__", None) or "", getattr(fn, "__name__", "")
    known = module.startswith(("keras.src.losses.", "keras.src.metrics.")) and name not in _ACROSS_ROWS
    return known and getattr(sys.modules.get(module), name, None) is fn  # no wrapper that bears its name


def _reaches_rows(settings: dict[str, Any], rank: int | None) -> bool:
    """Whether the axis of a function, where it has one, is that of the rows, or all."""
    axis = settings.get("axis", -1)
    axes = axis if isinstance(axis, list | tuple) else [axis]
    return any(each is None or each == 0 or each == -(rank or 0) for each in axes)


def _parts(names: tuple[str, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    given = {**dict(zip(names, args)), **kwargs}
    return [given.get(name) for name in names]


def _holds_numbers(value: Any) -> bool:
    """Whether it is a number, or a list with a tensor that is one (`[loss]`), which is no row."""
    if isinstance(value, list | tuple):
        return any(tf.is_tensor(leaf) and _rank(leaf) == 0 for leaf in keras.tree.flatten(value))
    return _rank(value) == 0


def _rank(value: Any) -> int | None:
    """The number of axes; None where it is not known."""
    if isinstance(value, list | tuple):
        return 1 + (_rank(value[0]) or 0) if value else 1
    try:
        return len(getattr(value, "shape", ()))
    except ValueError:  # not known
        return None
