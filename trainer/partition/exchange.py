"""Conversions between labels that need communication: what a replica asks the others, and makes of the answers."""

import functools
import math
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from ...distribute.mesh import from_rows, to_rows
from .conversions import Replica, blocks_of, join, part_of, times_share, where
from .labels import MEAN_OF_STATISTICS, PARTIAL_MAX, PARTIAL_MIN, STATISTIC, Label, label_sharded


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
    planned = [_plan(*each, places[each[3]]) for each in wanted]
    answers = iter((yield [request for requests, _ in planned for request in requests]))
    return [finish(*(next(answers) for _ in requests)) for requests, finish in planned]


def _plan(
    tensor: tf.Tensor, have: Label, want: Label, mesh: int, shape: Any, replica: Replica
) -> tuple[list[Request], Callable[..., tf.Tensor]]:
    """Return the requests of a conversion, and a function that makes the converted tensor of the answers."""
    ask = functools.partial(Request, mesh=mesh)

    def restore(found: tf.Tensor) -> tf.Tensor:
        return found > 0 if tensor.dtype == tf.bool else tf.cast(found, tensor.dtype)

    if have.is_stored:
        request = ask(tf.reshape(tensor, [-1]), 0, parts=True)
        return [request], lambda row: from_rows(row, have.axis, replica.num_replicas, shape)
    if want.is_stored:
        request = ask(to_rows(_summand(tensor), want.axis, replica.num_replicas), parts=True)
        return [request], lambda row: part_of(restore(row), tensor.shape, want, replica)
    if have.is_sharded:
        requests = [ask(piece, have.axis) for piece in _pieces(tensor, have, replica)]
        return requests, lambda *pieces: join([*pieces], have.axis)
    if have.is_offsets:
        (lengths,) = _pieces(tensor[1:] - tensor[:-1], label_sharded(0, chosen=have.chosen.of), replica)
        return [ask(lengths, 0)], lambda found: tf.pad(tf.cumsum(found), [[1, 0]])
    if have.is_count:
        return [ask(_summand(where(replica.alive, tensor - 1)))], lambda found: restore(found) + 1
    if have in (PARTIAL_MAX, PARTIAL_MIN):
        reduce = tf.reduce_max if have == PARTIAL_MAX else tf.reduce_min
        request = ask(_extreme(tensor, have, replica)[None], 0)
        return [request], lambda found: restore(tf.ensure_shape(reduce(found, 0), tensor.shape))
    summand = times_share(tensor, replica) if want == MEAN_OF_STATISTICS else tensor
    if have == STATISTIC or have.is_sizes:
        summand = where(replica.alive, summand)
    request = ask(_summand(summand))
    if have.is_sizes and tensor.shape.rank:
        return [request], lambda size: tf.where(  # -1 stays -1
            tf.range(tf.size(tensor)) == have.axis, tf.maximum(restore(size), -1), tensor
        )
    return [request], restore


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
