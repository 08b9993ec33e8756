"""Conversions between labels that need communication: what a replica asks the others, and makes of the answers."""

import math
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from ...distribute.mesh import from_rows, to_rows
from .conversions import Replica, blocks_of, join, part_of, times_share, where
from .labels import MEAN_OF_STATISTICS, PARTIAL_MAX, PARTIAL_MIN, STATISTIC, Label, is_sharded, is_stored


class Request(NamedTuple):
    """A request of a replica to those that differ from it along the axis `mesh` of the mesh alone, itself included.

    It is for the sum of all inputs `tensor`, or for their concatenation along `axis`, if it is given. With `parts` the input
    is a matrix, and the request for the sum of all replicas' matrix rows with this one's number; or it is a flat part, and
    the request for those of all.
    """

    tensor: tf.Tensor
    axis: int | None = None
    mesh: int = 0
    parts: bool = False


Exchange = Generator[list[Request], list[tf.Tensor], list[tf.Tensor]]
"""Yields requests to all replicas, receives the answers, and returns tensors."""


def exchange(
    wanted: Sequence[tuple[tf.Tensor, Label, Label, int, Any]], places: Sequence[Replica]
) -> Exchange:
    """Convert tensors, with their labels, the requested labels, the axis of the mesh and the shape, in one exchange.

    `places` are those of this replica along each axis.
    """
    asked = [
        [request._replace(mesh=axis) for request in _requests(tensor, have, want, places[axis])]
        for tensor, have, want, axis, _ in wanted
    ]
    answers = iter((yield [request for each in asked for request in each]))
    return [
        _answer(tensor, have, want, [next(answers) for _ in requests], places[axis], shape)
        for (tensor, have, want, axis, shape), requests in zip(wanted, asked)
    ]


def _requests(tensor: tf.Tensor, have: Label, want: Label, replica: Replica) -> list[Request]:
    if want == MEAN_OF_STATISTICS:
        tensor = where(replica.alive, times_share(tensor, replica))
    if have in (PARTIAL_MAX, PARTIAL_MIN):
        return [Request(_extreme(tensor, have, replica)[None], 0)]
    if is_stored(have):
        return [Request(tf.reshape(tensor, [-1]), 0, parts=True)]
    if is_stored(want):
        return [Request(to_rows(_summand(tensor), want.axis, replica.num_replicas), parts=True)]
    if is_sharded(have):
        return [Request(piece, have.axis) for piece in _pieces(tensor, have, replica)]
    if have == STATISTIC or have.kind == "sizes":
        tensor = where(replica.alive, tensor)
    return [Request(_summand(tensor))]


def _answer(
    tensor: tf.Tensor, have: Label, want: Label, given: list[tf.Tensor], replica: Replica, shape: Any
) -> tf.Tensor:
    if is_stored(have):
        return from_rows(given[0], have.axis, replica.num_replicas, shape)
    if is_stored(want):
        return part_of(tf.cast(given[0], tensor.dtype), tensor.shape, want, replica)
    if is_sharded(have):
        return join(given, have.axis)
    if have in (PARTIAL_MAX, PARTIAL_MIN):
        reduce = tf.reduce_max if have == PARTIAL_MAX else tf.reduce_min
        found = tf.ensure_shape(reduce(given[0], 0), tensor.shape)
        return found > 0 if tensor.dtype == tf.bool else found
    total = given[0] > 0 if tensor.dtype == tf.bool else tf.cast(given[0], tensor.dtype)
    if have.kind == "sizes" and tensor.shape.rank:
        total = tf.where(tf.range(tf.size(tensor)) == have.axis, total, tensor)
    return total


def _summand(tensor: tf.Tensor) -> tf.Tensor:
    """Return this replica's term of a sum, in a dtype that collectives support."""
    if tensor.dtype == tf.bool or (tensor.dtype.is_integer and tensor.dtype.size < 4):
        tensor = tf.cast(tensor, tf.int32)
    return tf.cast(tensor, tf.int64) if tensor.dtype in (tf.uint32, tf.uint64) else tensor


def _extreme(tensor: tf.Tensor, have: Label, replica: Replica) -> tf.Tensor:
    """Return this replica's input for a maximum or minimum: the neutral element if it has no samples."""
    number = tf.cast(tensor, tf.int32) if tensor.dtype == tf.bool else tensor
    if replica.alive is True:
        return number
    limit: Any = number.dtype.min if have == PARTIAL_MAX else number.dtype.max
    worst = math.copysign(math.inf, limit) if number.dtype.is_floating else limit
    neutral = tf.fill(tf.shape(number), tf.constant(worst, number.dtype))
    return tf.where(replica.alive, number, neutral)


def _pieces(tensor: tf.Tensor, have: Label, replica: Replica) -> list[tf.Tensor]:
    """Return the blocks of this replica's part, without borrowed samples."""
    pieces = blocks_of(tensor, have)
    if replica.alive is True:
        return pieces
    counts = (tf.where(replica.alive, tf.shape(piece)[have.axis], 0) for piece in pieces)
    return [tf.gather(piece, tf.range(count), axis=have.axis) for piece, count in zip(pieces, counts)]
