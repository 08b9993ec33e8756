"""Stage 1, and ready pieces for `gradient_aggregator`: (gradient, variable) pairs of one replica in, aggregated pairs out.

All run in replica context. The default is `all_reduce_sum_pairs`.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.optimizers import overwritten_by_gradient
from ...compat.tensorflow_graphs.equal_operations import reuse_equal_operations
from ...distribute.arguments import one_of, whole_number
from ...distribute.replicas import all_reduce_sum, all_reduce_sum_packed, num_replicas, replica_id
from ...distribute.step_context import current_step
from ..optimizer_checks import GradsAndVars, as_pairs, same_variables
from .call_options import CallOptions
from .sparse_gradients import (
    DENSEST,
    Pairs,
    fit_to_send,
    is_on_gpu,
    map_values,
    merge_rows,
    shorter,
    sums,
    unique_rows,
)
from .user_code import has_user_code, makes_slices_dense

_Piece = typing.TypeVar("_Piece")
SMALL = 16 * 1024
"""Elements below which a dense gradient shares a collective with others: copying it costs less than a collective."""


def aggregate(optimizer: Any, pairs: Pairs, options: CallOptions) -> Pairs:
    """Run stage 1: equal gradients on every replica, sparse ones with unique rows; `options.summed` are sums already."""
    parts = [id(v) in options.summed for _, v in pairs]
    summed = iter(
        _sum_gradients(optimizer, [pair for pair, is_part in zip(pairs, parts) if not is_part], options)
    )
    pairs = [pair if is_part else next(summed) for pair, is_part in zip(pairs, parts)]
    if has_user_code(optimizer, [v for _, v in pairs]):  # it may update the named rows of the table alone
        return [(unique_rows(g), v) for g, v in pairs]
    if is_on_gpu():
        return [(merge_rows(g), v) for g, v in pairs]
    # Several replicas could decide differently: outside a graph the slices of each name other rows.
    most, step = int(num_replicas() == 1 and makes_slices_dense(optimizer)), current_step()
    if step is not None and step.in_xla:
        most = DENSEST
    if most:
        pairs = [(g if overwritten_by_gradient(v) else shorter(g, list(v.shape), most), v) for g, v in pairs]
    return [(unique_rows(g), v) for g, v in pairs]


def _sum_gradients(optimizer: Any, pairs: Pairs, options: CallOptions) -> Pairs:
    """Return the sum over the replicas, or what the optimizer's `gradient_aggregator` makes of the pairs."""
    aggregator = optimizer.gradient_aggregator
    if options.skip_aggregation or aggregator is no_aggregation:
        return pairs
    if num_replicas() == 1:
        if aggregator is None:
            return pairs
        return same_variables(aggregator, "gradient_aggregator", pairs, aggregator(list(pairs)))
    mine, _ = without_overwriting(pairs)
    if aggregator is None:
        totals = reduce_packed([g for g, _ in fit_to_send(mine)], SMALL)
    else:
        totals = [g for g, _ in same_variables(aggregator, "gradient_aggregator", mine, aggregator(mine))]
    rest = iter(totals)
    return [(_largest(g) if overwritten_by_gradient(v) else next(rest), v) for g, v in pairs]


def without_overwriting(pairs: Pairs) -> tuple[Pairs, Pairs]:
    """Split off the pairs whose "gradient" is the variable's new value (Keras' float8 layers)."""
    overwriting = [pair for pair in pairs if overwritten_by_gradient(pair[1])]
    return [pair for pair in pairs if not overwritten_by_gradient(pair[1])], overwriting


def _largest(value: tf.Tensor) -> tf.Tensor:
    """Return the largest value over the replicas, element by element: how Keras reduces the new scales of float8 layers."""
    step, replicas = current_step(), num_replicas()
    if step is not None:
        value = tf.where(step.alive, value, tf.zeros_like(value))
    mine = tf.reshape(
        tf.one_hot(replica_id(), replicas, dtype=value.dtype), [replicas] + [1] * value.shape.rank
    )
    return tf.reduce_max(all_reduce_sum([mine * value])[0], axis=0)


def all_reduce_sum_pairs(grads_and_vars: GradsAndVars, pack_below: int = SMALL) -> Pairs:
    """Return the default aggregation: the sum over all replicas, the same bits on each.

        g = sum_r g_r

    Dense gradients with fewer than `pack_below` elements share one collective for each dtype; the sum of each number is
    the same as it would be alone. With one replica, the pairs as they are.

    Examples:
        >>> optimizer = unisono.optimizers.Adam(gradient_aggregator=unisono.optimizers.all_reduce_sum_pairs)
    """
    pairs = as_pairs(grads_and_vars)
    whole_number("pack_below", pack_below, least=0)
    if num_replicas() == 1:
        return pairs
    totals = reduce_packed([g for g, _ in pairs], pack_below)
    return [(total, v) for total, (_, v) in zip(totals, pairs)]


@reuse_equal_operations()
def reduce_packed(gradients: Sequence[Any], pack_below: int) -> list[Any]:
    """Sum over replicas; small dense gradients share one collective for each dtype. Context: replica."""
    return all_reduce_sum_packed(gradients, pack_below, sums)


class Piece:
    """A stage with settings: saved and restored from the fields of its dataclass."""

    def get_config(self) -> dict[str, Any]:
        """Return the arguments, for saving."""
        return dataclasses.asdict(self)  # type: ignore[call-overload]

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Reverse `get_config`."""
        return cls(**config)


@typing.dataclass_transform(frozen_default=True)
def piece(cls: type[_Piece]) -> type[_Piece]:
    """Make `cls` a frozen dataclass that Keras can save, as a decorator."""
    return keras.saving.register_keras_serializable("unisono")(dataclasses.dataclass(frozen=True)(cls))


@keras.saving.register_keras_serializable("unisono")
def no_aggregation(grads_and_vars: GradsAndVars) -> Pairs:
    """Return the pairs unchanged: the caller has reduced the gradients, so that they are the same on every replica.

    Examples:
        >>> optimizer = unisono.optimizers.Adam(gradient_aggregator=unisono.optimizers.no_aggregation)
    """
    return as_pairs(grads_and_vars)


@piece
class PackedAggregation(Piece):
    """The sum over replicas in as few collectives as the limit allows.

    Worth it where a collective has a long latency (many workers, Ethernet): one large message instead of many.

    Source: Sergeev and Del Balso 2018, "Horovod", section 5.1 (tensor fusion).

    Attributes:
        max_elements: a gradient with at least this many elements has a separate collective.

    Examples:
        >>> optimizer = unisono.optimizers.Adam(gradient_aggregator=unisono.optimizers.PackedAggregation())
    """

    max_elements: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        whole_number("max_elements", self.max_elements)

    def __call__(self, grads_and_vars: GradsAndVars) -> Pairs:
        """Context: replica."""
        return all_reduce_sum_pairs(grads_and_vars, self.max_elements)


@piece
class HalfPrecisionAggregation(Piece):
    """The sum over replicas in 16 bits: half the bytes on the wire; the result has the gradient's own dtype again.

    Each number keeps 11 (float16) or 8 (bfloat16) significant bits. float16 overflows above 65,504: use it with a loss
    scale, whose finite check comes after aggregation, or use bfloat16, which has float32's range.

    Source: Jia et al. 2018, "Highly Scalable Deep Learning Training System with Mixed-Precision", section 3.

    Attributes:
        dtype: `"float16"` or `"bfloat16"`.

    Examples:
        >>> stage = unisono.optimizers.HalfPrecisionAggregation("bfloat16")
        >>> optimizer = unisono.optimizers.Adam(1e-3, gradient_aggregator=stage)
    """

    dtype: str = "float16"

    def __post_init__(self) -> None:
        if self.dtype not in (tf.float16, tf.bfloat16):
            one_of("dtype", self.dtype, ("float16", "bfloat16"))

    def __call__(self, grads_and_vars: GradsAndVars) -> Pairs:
        """Context: replica."""
        pairs = list(grads_and_vars)
        if num_replicas() == 1:
            return pairs
        short = [map_values(lambda v: tf.cast(v, self.dtype), g) for g, _ in pairs]
        totals = reduce_packed(short, SMALL)
        return [
            (map_values(lambda t, g=g: tf.cast(t, g.dtype), total), v) for total, (g, v) in zip(totals, pairs)
        ]
