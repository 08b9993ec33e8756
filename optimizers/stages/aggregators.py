"""Ready pieces for `gradient_aggregator`: (gradient, variable) pairs of one replica in, aggregated pairs out.

All run in replica context. The default is `all_reduce_sum_pairs`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.equal_operations import made_once
from ...distribute.arguments import one_of, truth, whole_number
from ...distribute.replicas import num_replicas
from ..checks import as_pairs
from .slices import Piece, map_values
from .slices_on_gpus import sums

Pairs = list[tuple[Any, Any]]

SMALL = 16 * 1024
"""Elements below which a dense gradient shares a collective with others: copying it costs less than a collective."""


def all_reduce_sum_pairs(grads_and_vars: Iterable[tuple[Any, Any]], pack_below: int = SMALL) -> Pairs:
    """The default aggregation: the sum over all replicas, the same bits on each.

        g = sum_r g_r

    Dense gradients with fewer than `pack_below` elements share one collective for each dtype; the sum of each number is
    the same as it would be alone. With one replica, the pairs as they are.

    Context: replica.
    """
    pairs = as_pairs(grads_and_vars)
    whole_number("pack_below", pack_below, least=0)
    if num_replicas() == 1:
        return pairs
    totals = reduce_packed([g for g, _ in pairs], pack_below)
    return [(total, v) for total, (_, v) in zip(totals, pairs)]


@made_once()
def reduce_packed(gradients: Sequence[Any], pack_below: int, weight: tf.Tensor | None = None) -> list[Any]:
    """Sums over replicas; dense gradients of fewer than `pack_below` elements share one collective for each dtype.

    Before the sum each gradient is multiplied by the scalar `weight`; where that is 0, NaN counts as 0. Context: replica.
    """
    groups: dict[Any, list[int]] = {}
    alone: list[int] = []
    for index, gradient in enumerate(gradients):
        size = None if isinstance(gradient, tf.IndexedSlices) else gradient.shape.num_elements()
        packs = size is not None and size < pack_below
        (groups.setdefault(gradient.dtype, []) if packs else alone).append(index)
    for dtype in [d for d, group in groups.items() if len(group) == 1]:
        alone += groups.pop(dtype)
    parcels = [tf.concat([tf.reshape(gradients[i], [-1]) for i in group], 0) for group in groups.values()]
    parcels += [gradients[i] for i in alone]
    if weight is not None:
        parcels = [weighted(parcel, weight) for parcel in parcels]
    totals = sums(parcels)
    result: list[Any] = [None] * len(gradients)
    for group, total in zip(groups.values(), totals):
        sizes = [gradients[i].shape.num_elements() for i in group]
        for i, part in zip(group, tf.split(total, sizes)):
            result[i] = tf.reshape(part, gradients[i].shape)
    for i, total in zip(alone, totals[len(groups) :]):
        result[i] = total
    return result


def weighted(gradient: Any, weight: tf.Tensor) -> Any:
    """`weight * gradient`, and 0 where the weight is 0 even if the gradient is not finite (a replica without rows)."""
    return map_values(lambda v: tf.math.multiply_no_nan(v, tf.cast(weight, v.dtype)), gradient)


@keras.saving.register_keras_serializable("unisono")
def no_aggregation(grads_and_vars: Iterable[tuple[Any, Any]]) -> Pairs:
    """For gradients that are already the same on every replica, because the caller has reduced them."""
    return as_pairs(grads_and_vars)


@keras.saving.register_keras_serializable("unisono")
@dataclasses.dataclass(frozen=True)
class PackedAggregation(Piece):
    """The sum over replicas in as few collectives as the limit allows.

    Worth it where a collective has a long latency (many workers, Ethernet): one large message instead of many.

    Source: Sergeev and Del Balso 2018, "Horovod", section 5.1 (tensor fusion).

    Attributes:
        max_elements: a gradient with at least so many elements has a collective of its own.
    """

    max_elements: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        whole_number("max_elements", self.max_elements)

    def __call__(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Pairs:
        """Context: replica."""
        return all_reduce_sum_pairs(grads_and_vars, self.max_elements)


@keras.saving.register_keras_serializable("unisono")
@dataclasses.dataclass(frozen=True)
class HalfPrecisionAggregation(Piece):
    """The sum over replicas in 16 bits: half the bytes on the wire; the result has the gradient's own dtype again.

    Each number keeps 11 (float16) or 8 (bfloat16) significant bits. float16 overflows above 65,504: use it with a loss
    scale, whose verdict comes after aggregation, or take bfloat16, which has float32's range.

    With `carry_error` each replica keeps what it has rounded away of dense float32 gradients, and adds it to its gradient
    of the next step. Then the sum over all steps of what was sent differs from the exact one by one step's rounding alone:
    at most half a unit in the last place (2**-9 of a number in bfloat16, 2**-12 in float16) for each replica. The additions
    of the sum are in 16 bits too, and what they round is not carried. It takes memory for one more float32 copy of the
    weights on each replica. Backups hold the errors; files of a model do not, so training that goes on from one begins
    without.

    Source: Jia et al. 2018, "Highly Scalable Deep Learning Training System with Mixed-Precision", section 3; Karimireddy
    et al. 2019, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", algorithm 2.

    Attributes:
        dtype: `"float16"` or `"bfloat16"`.
        carry_error: whether what is rounded away is carried over to the next step.
    """

    dtype: str = "float16"
    carry_error: bool = False

    def __post_init__(self) -> None:
        truth("carry_error", self.carry_error)
        if not isinstance(self.dtype, tf.DType):
            one_of("dtype", self.dtype, ("float16", "bfloat16"))
        elif self.dtype not in (tf.float16, tf.bfloat16):
            raise ValueError(f'`dtype` must be "float16" or "bfloat16". Received: {self.dtype!r}')

    def __call__(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> Pairs:
        """Context: replica."""
        pairs = list(grads_and_vars)
        if num_replicas() == 1:
            return pairs
        short = [map_values(lambda v: tf.cast(v, self.dtype), g) for g, _ in pairs]
        totals = reduce_packed(short, SMALL)
        return [
            (map_values(lambda t, g=g: tf.cast(t, g.dtype), total), v) for total, (g, v) in zip(totals, pairs)
        ]
