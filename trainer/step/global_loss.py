"""The exact loss of a part of a batch: of a micro-batch, or of one of several batches whose gradients are accumulated."""

import types
import weakref
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...compat.keras_private.training import entries_of, settings_of
from ...compat.upstream_places import squeeze_or_expand_to_same_rank
from ...compat.wrong_use import WrongUse
from ...distribute.arguments import show
from ...distribute.step_context import this_step

_ROWWISE_NAMES = """
binary_crossentropy binary_focal_crossentropy categorical_crossentropy categorical_focal_crossentropy
categorical_generalized_cross_entropy categorical_hinge cosine_similarity ctc hinge huber kl_divergence log_cosh
mean_absolute_error mean_absolute_percentage_error mean_squared_error mean_squared_logarithmic_error poisson
sparse_categorical_crossentropy squared_hinge
"""
_ROWWISE_FUNCTIONS = frozenset(getattr(keras.losses, name) for name in _ROWWISE_NAMES.split())
_declared: weakref.WeakSet[Any] = weakref.WeakSet()  # by `rowwise`


def rowwise(fn: Any) -> Any:
    """Declare that each value of a custom loss or metric depends on one sample only.

    A `Pipeline` with `schedule="1f1b"` computes the loss of each micro-batch separately, and needs this for custom losses.
    Other training does not need it.

    Args:
        fn: a function `fn(y_true, y_pred)` whose result has one entry (or one per position) for each sample, which
            depends only on that sample; or a `keras.Loss` or `keras.Metric` instance or class with the same property.

    Returns:
        `fn` itself.

    Examples:
        >>> @unisono.rowwise
        ... def squared_error(y_true, y_pred):
        ...     return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)
    """
    if not callable(fn):
        raise WrongUse(
            f"`fn` must be a function of (y_true, y_pred), a loss or a metric. Received: {show(fn)}"
        )
    if isinstance(fn, types.BuiltinFunctionType | types.MethodType | np.ufunc):
        raise WrongUse(f"`fn` cannot be marked: wrap it in a Python function. Received: {show(fn)}")
    _declared.add(fn)
    return fn


def works_on_samples(loss: keras.losses.Loss, y_pred: Any = None) -> bool:
    """Return whether each entry of the loss depends on its own sample alone; without `y_pred` for two axes or more."""
    if any(each in _declared for each in (loss, *type(loss).__mro__)):
        return True
    if type(loss).call is not _WRAPPER.call:
        return False
    fn = getattr(loss, "fn", None)
    if fn in _declared:
        return True
    if fn not in _ROWWISE_FUNCTIONS:
        return False
    try:
        rank = 2 if y_pred is None else len(y_pred.shape)
    except (AttributeError, ValueError):  # a nest, or a rank that is not known
        return False
    axis = settings_of(loss).get("axis", -1)  # in outputs of rank 1 the last axis is that of the samples
    return isinstance(axis, int) and (axis if axis >= 0 else rank + axis) > 0


_WRAPPER = next(c for c in keras.losses.MeanSquaredError.__mro__ if "call" in vars(c))


def reduces_by_itself(loss: keras.losses.Loss) -> bool:
    """Return whether Keras' own `__call__` reduces the loss's entries to one number."""
    return type(loss).__call__ is keras.losses.Loss.__call__ and loss.reduction not in (None, "none")


def loss_of_samples(
    loss: keras.losses.Loss, y_true: Any, y_pred: Any, sample_weight: Any = None
) -> tf.Tensor:
    """Return `loss(y_true, y_pred, sample_weight)` of a replica, in a step that records its divisor.

    With b_r of B samples in part r and share_r = b_r / B, the loss of the batch is L = sum_r share_r C_r. N_r is the
    sum of the weighted values of the part, n_r their number, t_r its valid entries, V and W the valid entries and the
    weights of the batch:

    =============================  =======================================================================
    reduction                      C_r
    =============================  =======================================================================
    `sum_over_batch_size`, `mean`  N_r / n_r; with a mask N_r (t_r / n_r) / (share_r V)
    `mean_with_sample_weight`      N_r / (share_r W)
    `sum`                          N_r / share_r
    =============================  =======================================================================
    """
    step, (values, mask) = this_step(), entries_of(loss, y_true, y_pred)
    values = tf.convert_to_tensor(values, dtype=loss.dtype)
    dtype = values.dtype
    assert step.totals is not None
    alive, totals = tf.cast(step.alive, dtype), step.totals
    weight = None if sample_weight is None else tf.cast(tf.convert_to_tensor(sample_weight), dtype)
    entries = valid = None
    if mask is not None:
        float_mask = tf.cast(mask, dtype)
        entries = tf.cast(tf.size(float_mask), dtype)
        valid = tf.reduce_sum(float_mask)
        if weight is None:
            weight = float_mask
        else:
            float_mask, weight = squeeze_or_expand_to_same_rank(float_mask, weight)
            weight = weight * float_mask
    if weight is not None:
        values, weight = squeeze_or_expand_to_same_rank(values, weight)
        values = values * weight
    if values.shape.rank == 0:
        return values
    share, total = step.share(dtype), tf.reduce_sum(values)
    if loss.reduction == "sum":
        return tf.math.divide_no_nan(total, share)
    if loss.reduction == "mean_with_sample_weight" and weight is not None:
        weight_total = totals.divisor(tf.stop_gradient(tf.reduce_sum(weight) * alive))
        return tf.math.divide_no_nan(total, share * weight_total)
    count = tf.cast(tf.size(values), dtype)
    if valid is not None and entries is not None and loss.reduction != "mean_with_sample_weight":
        valid_total = totals.divisor(tf.stop_gradient(valid * alive))
        return tf.math.divide_no_nan(total * (entries / count), share * valid_total)
    return tf.math.divide_no_nan(total, count)
