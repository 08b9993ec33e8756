"""Means over the global batch, for custom training loops: sum values and counts, divide once."""

import contextlib
from typing import Any, Literal, get_args

import tensorflow as tf

from ..compat.tensorflow_graphs.graphs import leave_as_written
from ..compat.upstream_places import in_symbolic_scope
from ..compat.wrong_use import WrongUse
from .arguments import one_of, show, whole_number
from .mesh import mesh_of
from .replicas import all_reduce_sum
from .step_context import current_step

Reduction = Literal["sum_over_batch_size", "mean_with_sample_weight"]


def global_batch_size(per_replica: int, strategy: tf.distribute.Strategy | None = None) -> int:
    """Return `per_replica * num_replicas`, the samples of one step.

    Args:
        per_replica: int >= 1; samples of one replica.
        strategy: the strategy whose replicas count. None: the current one (1 replica without any).

    Raises:
        ValueError: `per_replica` is not a positive whole number.

    Examples:
        >>> unisono.distribute.global_batch_size(64)
        64
    """
    if strategy is not None and not isinstance(strategy, tf.distribute.Strategy):
        raise WrongUse(f"`strategy` must be a tf.distribute.Strategy or None. Received: {show(strategy)}")
    return whole_number("per_replica", per_replica) * mesh_of(strategy).shape[0]


@leave_as_written
def global_mean(
    values: Any, sample_weight: Any = None, reduction: Reduction = "sum_over_batch_size"
) -> tf.Tensor:
    """Return this replica's part of the mean over the global batch; the parts of all replicas add up to it exactly.

        part_r = sum_i w_i v_i / sum over replicas of n_r

    Replicas may hold different numbers of samples, or none. The sum over replicas of the gradients of the parts, which an
    optimizer computes, is the gradient of the mean.

    Args:
        values: float tensor (samples, ...) of this replica; usually one loss for each sample (`reduction="none"`).
        sample_weight: tensor whose shape is a prefix of the shape of `values` ((samples,) is usual) or broadcasts to
            it, or None.
        reduction: defines n_r. `"sum_over_batch_size"`, the default of every Keras loss: the number of values, so that
            weights change the size of the mean. `"mean_with_sample_weight"`: the sum of the weights.

    Returns:
        A scalar of the dtype of `values` (float32 for float16 and bfloat16, whose sums would lose digits); 0
        where the whole global batch is empty or has total weight 0.

    Raises:
        ValueError: unknown `reduction`, or weights that do not fit the values.

    Context: replica. Without a strategy, and in steps of `unisono.Model` and `replica_step`, it is the plain mean.

    Examples:
        >>> float(unisono.distribute.global_mean([1.0, 3.0], sample_weight=[1.0, 0.5]))
        1.25
    """
    one_of("reduction", reduction, get_args(Reduction))
    replica = tf.distribute.get_replica_context() is not None
    if not (replica or in_symbolic_scope()):
        raise WrongUse("`global_mean` was called outside `strategy.run`: call it inside.")
    values = numeric_tensor("values", values)
    if sample_weight is not None:
        sample_weight = numeric_tensor("sample_weight", sample_weight)
    if not values.dtype.is_floating or values.dtype in (tf.float16, tf.bfloat16):
        values = tf.cast(values, tf.float32)
    total, count = tf.reduce_sum(values), tf.cast(tf.size(values), values.dtype)
    if sample_weight is not None:
        weights = _fit_weights(sample_weight, values)
        total = tf.reduce_sum(values * weights)
        if reduction == "mean_with_sample_weight":
            count = tf.reduce_sum(tf.broadcast_to(weights, tf.shape(values)))
    if replica and current_step() is None:  # a step is the program of one device
        (count,) = all_reduce_sum([count])
    return tf.math.divide_no_nan(total, count)


def numeric_tensor(name: str, value: Any) -> tf.Tensor:
    """Return `value` as a tensor of numbers; raise a ValueError otherwise."""
    with contextlib.suppress(TypeError, ValueError):
        tensor = tf.convert_to_tensor(value)
        if tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool:
            return tensor
    raise WrongUse(f"`{name}` must be a tensor of numbers. Received: {show(value)}")


def _fit_weights(sample_weight: Any, values: tf.Tensor) -> tf.Tensor:
    """Return the weights with the rank of `values`: (samples,) becomes (samples, 1, ...), (samples, 1) (samples,)."""
    weights = tf.cast(tf.convert_to_tensor(sample_weight), values.dtype)
    rank, weight_rank = values.shape.rank, weights.shape.rank
    if rank is None or weight_rank is None:
        return weights
    if weight_rank == rank + 1 and weights.shape[-1] == 1:
        weights = tf.squeeze(weights, -1)
    for _ in range(rank - weight_rank):
        weights = tf.expand_dims(weights, -1)
    try:
        fits = tf.broadcast_static_shape(weights.shape, values.shape).rank == rank
    except ValueError:
        fits = False
    if not fits:
        raise WrongUse(
            f"`sample_weight` of shape {tf.convert_to_tensor(sample_weight).shape} does not fit `values` "
            f"of shape {values.shape}: pass one weight for each sample, or one for each value."
        )
    return weights
