r"""The exact mean of a loss over the rows of all replicas.

With :math:`b_r` rows on replica r, :math:`B = \sum_r b_r` and :math:`share_r = b_r / B`, every loss here has the value
:math:`C_r` in units of a local mean, such that the loss of the global batch is

.. math:: L = \sum_r share_r C_r

For a loss that works on rows, with :math:`N_r` the sum of this replica's weighted values:

=============================  ==========================================================================
reduction                      :math:`C_r`
=============================  ==========================================================================
`sum_over_batch_size`, `mean`  :math:`N_r / n_r` (the local mean: the number of values follows the rows)
the same with a mask           :math:`N_r (t_r / n_r) / (share_r V)`, V = all-reduced sum of valid entries, t = entries
`mean_with_sample_weight`      :math:`N_r / (share_r W)`, W = all-reduced sum of the weights
`sum`                          :math:`N_r / share_r`
`none`                         values :math:`/ share_r` (Keras sums them in the gradient)
=============================  ==========================================================================

Context: replica, inside a `StepContext`. Source: keras.losses.Loss, whose reductions these are on one device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ...compat.training import settings_of, squeeze_or_expand_to_same_rank
from ...distribute.replicas import all_reduce_sum, num_replicas
from ...distribute.step_context import StepContext, current_step, step_scope, this_step
from .collectives import refuse_collective
from .gathered_rows import own_rows_of_all, value_with_full_gradient

_ROWWISE_NAMES = """
binary_crossentropy binary_focal_crossentropy categorical_crossentropy categorical_focal_crossentropy
categorical_generalized_cross_entropy categorical_hinge cosine_similarity ctc hinge huber kl_divergence log_cosh
mean_absolute_error mean_absolute_percentage_error mean_squared_error mean_squared_logarithmic_error poisson
sparse_categorical_crossentropy squared_hinge
"""
_ROWWISE_FUNCTIONS = frozenset(
    getattr(keras.losses, name) for name in _ROWWISE_NAMES.split() if hasattr(keras.losses, name)
)


def rowwise(fn: Any) -> Any:
    """Declares that a loss or metric of your own treats every row by itself.

    With several replicas such a callable sees each replica's own rows instead of the gathered rows of all. Declare it for
    large outputs, where gathering would cost time.

    Args:
        fn: a function `fn(y_true, y_pred)` whose result has one entry (or one per position) for each row and depends on
            that row alone; or a `keras.Loss` or `keras.Metric` instance or class of which the same is true.

    Returns:
        `fn` itself.
    """
    fn._unisono_rowwise = True
    return fn


def works_on_rows(loss: keras.Loss) -> bool:
    """Whether each entry of `loss.call(...)` depends on its own row only."""
    if getattr(loss, "_unisono_rowwise", False):
        return True
    if type(loss).call is not getattr(_WRAPPER, "call", None):
        return False
    fn = getattr(loss, "fn", None)
    if getattr(fn, "_unisono_rowwise", False):
        return True
    kwargs = settings_of(loss)
    return fn in _ROWWISE_FUNCTIONS and kwargs.get("axis", -1) not in (0, None)


_WRAPPER = next(c for c in keras.losses.MeanSquaredError.__mro__ if "call" in vars(c))


def needed() -> bool:
    """Whether a loss called here and now must be made exact: in a step of ours with several parts to its batch."""
    step = current_step()
    return step is not None and (step.num_replicas > 1 or step.weigh_losses)


def on_all_rows(
    call: Callable[[Any, Any, Any], tf.Tensor], y_true: Any, y_pred: Any, sample_weight: Any
) -> tf.Tensor:
    """The value of any loss callable on the global batch, with the gradient of this replica's rows.

    The rows of all replicas are gathered, so a loss that looks at the whole batch (contrastive, Dice, a mean of its own)
    has its value of one device. The gradient flows into this replica's rows only; their sum over replicas is exact.

    Context: replica, inside a `StepContext`.
    """
    refuse_collective("a loss of your own that may look at the whole batch (see `unisono.rowwise`)")
    arguments = own_rows_of_all((y_true, y_pred, sample_weight))
    step = this_step()
    with step_scope(StepContext(0, 1, step.global_rows, step.global_rows)):
        value = call(*arguments)
    return value_with_full_gradient(value)


def reduce_weighted_values(
    values: Any, sample_weight: Any, mask: Any, reduction: str | None, dtype: Any
) -> tf.Tensor:
    """Keras' `reduce_weighted_values`, exact over all replicas. See the module's table for the equations.

    Args:
        values: tensor, `[rows, ...]` of per-entry losses; a scalar is taken for a mean over this replica's rows.
        sample_weight: tensor that broadcasts against `values`, or None.
        mask: bool tensor of the shape of `values`, or None.
        reduction: one of Keras' reductions.
        dtype: dtype of the computation.

    Returns:
        Scalar tensor; with reduction "none" or None a tensor of the shape of `values`.
    """
    step = this_step()
    values = tf.convert_to_tensor(values, dtype=dtype)
    dtype = values.dtype
    alive = tf.cast(step.alive, dtype)
    if values.shape.rank == 0:
        return values
    weight = None if sample_weight is None else tf.cast(tf.convert_to_tensor(sample_weight), dtype)
    entries = valid = None
    if mask is not None:
        float_mask = tf.cast(mask, dtype)
        entries = tf.cast(tf.size(float_mask), dtype)
        valid = tf.reduce_sum(float_mask)
        if weight is None:
            weight = float_mask
        else:
            float_mask, weight = _same_rank(float_mask, weight)
            weight = weight * float_mask
    if weight is not None:
        values, weight = _same_rank(values, weight)
        values = values * weight
    share = step.share(dtype)
    if reduction in (None, "none"):
        return tf.math.divide_no_nan(values, share)
    total = tf.reduce_sum(values)
    if reduction == "sum":
        return tf.math.divide_no_nan(total, share)
    if reduction == "mean_with_sample_weight" and weight is not None:
        return tf.math.divide_no_nan(total, share * _global_weight(tf.reduce_sum(weight) * alive))
    count = tf.cast(tf.size(values), dtype)
    if valid is not None and entries is not None and reduction != "mean_with_sample_weight":
        return tf.math.divide_no_nan(total * (entries / count), share * _global_weight(valid * alive))
    return tf.math.divide_no_nan(total, count)


def _global_weight(local: tf.Tensor) -> tf.Tensor:
    """All-reduced weight total, noted in the step so that accumulation can divide by the same number."""
    step = this_step()
    total = tf.stop_gradient(local)
    if num_replicas() > 1:
        refuse_collective("a loss that is divided by weights (a mask, or `mean_with_sample_weight`)")
        (total,) = all_reduce_sum([total])
    if step.known_totals is not None:
        total = step.known_totals[len(step.weight_totals)]
    step.weight_totals.append(total)
    return total


def _same_rank(a: tf.Tensor, b: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return squeeze_or_expand_to_same_rank(a, b)
