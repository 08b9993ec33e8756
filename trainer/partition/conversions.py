"""Conversions between labels, computed on one replica."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...compat.tensorflow_graphs.host_memory import size_on_host
from ...distribute.mesh import FLAT, to_rows
from ...distribute.step_context import ReplicaSamples
from .labels import (
    MEAN_OF_STATISTICS,
    OWN,
    PARTIAL_MAX,
    PARTIAL_MEAN,
    PARTIAL_MIN,
    PARTIAL_SUM,
    REPLICATED,
    STATISTIC,
    Label,
)


@dataclasses.dataclass
class Replica(ReplicaSamples):
    """One replica's samples of the global batch, and its tensors.

    Attributes:
        held: the number of samples in its tensors: one borrowed sample, which does not count, where `samples` is 0.
        copy: int; the number of this replica's variable copy within its worker.
    """

    held: Any = None
    copy: int = 0

    def __post_init__(self) -> None:
        if self.held is None:
            self.held = max(self.samples, 1) if isinstance(self.samples, int) else tf.maximum(self.samples, 1)

    @property
    def unknown(self) -> dict[str, tf.Tensor]:
        """The numbers that are unknown while tracing, by name, for the body of a branch or a loop."""
        return {name: number for name, number in vars(self).items() if isinstance(number, tf.Tensor)}


def convert_locally(tensor: tf.Tensor, have: Label, want: Label, replica: Replica) -> tf.Tensor:
    """Return a conversion without communication."""
    if have in (want, MEAN_OF_STATISTICS) or want in (PARTIAL_MAX, PARTIAL_MIN):
        return tensor
    if have == PARTIAL_MEAN:
        return times_share(tensor, replica)
    if have.is_sizes and want == REPLICATED:
        return _scale_element(tensor, have.axis, replica.global_samples, replica.held)
    if want == PARTIAL_SUM:
        return where(replica.alive if have == STATISTIC else replica.holds_first_sample, tensor)
    if want == OWN:
        return _own_key(tensor, replica)
    if want.is_sharded and have == REPLICATED:
        return _slice(tensor, want, replica)
    if want.is_stored:
        rows = to_rows(tensor, want.axis, replica.num_replicas)
        return part_of(rows[replica.replica_id], tensor.shape, want, replica)
    if want.is_sizes:
        return _local_sizes(tensor, want, replica)
    raise AssertionError(f"{have} -> {want}")


def part_of(row: tf.Tensor, whole: tf.TensorShape, label: Label, replica: Replica) -> tf.Tensor:
    """Return a STORED part of a tensor, from its flat numbers."""
    shape = whole.as_list()
    if label.axis == FLAT:
        return row
    shape[label.axis] //= replica.num_replicas
    return tf.reshape(row, shape)


def where(condition: Any, tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor, or zeros: negative ones, which alone leave the sign of every other number."""
    if condition is True:
        return tensor
    zeros = tf.zeros_like(tensor)
    zeros = -zeros if zeros.dtype.is_floating else zeros
    return zeros if condition is False else tf.where(condition, tensor, zeros)


def times_share(tensor: tf.Tensor, replica: Replica) -> tf.Tensor:
    """Return a mean over a replica's samples as a term of the mean over the batch."""
    if replica.held is replica.global_samples:
        return tensor
    real = tensor.dtype if tensor.dtype.is_complex or tensor.dtype == tf.float64 else tf.float32
    share = tf.cast(tf.cast(replica.held, tf.float64) / tf.cast(replica.global_samples, tf.float64), real)
    return tf.cast(tf.cast(tensor, real) * share, tensor.dtype)


def times_ratio(number: Any, over: Any, under: Any) -> Any:
    """Return `number * over / under`, exactly, in int64."""
    if isinstance(over, int) and isinstance(under, int):
        static = tf.get_static_value(number)
        if static is not None:
            return tf.constant(static.astype("int64") * over // under, number.dtype)
    with tf.device("CPU:0"):  # the host would wait for a GPU
        wide = tf.cast(number, tf.int64) * tf.cast(over, tf.int64)
        wide = wide if isinstance(under, int) and under == 1 else wide // tf.cast(under, tf.int64)
        return size_on_host(tf.cast(wide, number.dtype))


def _scale_element(tensor: tf.Tensor, element: int, over: Any, under: Any) -> tf.Tensor:
    if over is under:
        return tensor
    plain = tf.get_static_value(tensor) if tensor.shape.rank else None
    if plain is not None:
        return scale_numbers(plain, tensor.dtype, element, over, under)
    scaled = times_ratio(tensor, over, under)
    if tensor.shape.rank:
        with tf.device("CPU:0"):
            parts = tensor[:element], scaled[element : element + 1], tensor[element + 1 :]
            return size_on_host(tf.concat(parts, 0))
    return scaled


def scale_numbers(numbers: Sequence[int], dtype: tf.DType, element: int, over: Any, under: Any) -> tf.Tensor:
    """Return a vector of known sizes, of which one is multiplied by `over / under`."""
    found: list[Any] = [int(number) for number in numbers]
    if isinstance(over, int) and isinstance(under, int):
        found[element] = found[element] * over // under
        return tf.constant(found, dtype)
    with tf.device("CPU:0"):
        found[element] = times_ratio(tf.constant(found[element], dtype), over, under)
        return size_on_host(tf.stack(found))


def _local_sizes(tensor: tf.Tensor, want: Label, replica: Replica) -> tf.Tensor:
    if want.chosen is not None:  # a reshape: the open extent depends on the data
        return tf.concat([tensor[: want.axis], [tf.constant(-1, tensor.dtype)], tensor[want.axis + 1 :]], 0)
    static = tf.get_static_value(tensor, partial=True) if tensor.shape.rank else None
    if static is not None and static[want.axis] == -1:
        return tensor
    return _scale_element(tensor, want.axis, replica.held, replica.global_samples)


def _slice(tensor: tf.Tensor, want: Label, replica: Replica) -> tf.Tensor:
    if replica.held is replica.global_samples:
        return tensor
    parts = []
    start = _start_held(replica)
    for piece in blocks_of(tensor, want):
        shape = tf.shape(piece)
        extent = piece.shape[want.axis]
        size = tf.constant(extent, tf.int32) if extent is not None else shape[want.axis]
        first = times_ratio(size, start, replica.global_samples)
        count = times_ratio(size, replica.held, replica.global_samples)
        if extent == 1 or extent is None:  # broadcast axes are not sliced
            first, count = tf.where(size == 1, 0, first), tf.where(size == 1, 1, count)
        entries = [slice(None)] * want.axis + [slice(first, first + count)]
        parts.append(piece[tuple(entries)])
    return join(parts, want.axis)


def blocks_of(tensor: tf.Tensor, label: Label) -> list[tf.Tensor]:
    """Return the blocks of a SHARDED tensor."""
    return tf.split(tensor, label.blocks, label.axis) if label.blocks > 1 else [tensor]


def join(parts: list[tf.Tensor], axis: int) -> tf.Tensor:
    """Return the blocks, one behind the other."""
    return tf.concat(parts, axis) if len(parts) > 1 else parts[0]


def _own_key(tensor: tf.Tensor, replica: Replica) -> tf.Tensor:
    """Return a key for random numbers: on the first replica the single-device key, a different one on each other replica."""
    if replica.replica_id == 0:
        return tensor
    shift = tf.constant((replica.replica_id * 0x9E3779B97F4A7C15) % 2**64, tf.uint64)
    return tf.cast(tf.bitwise.bitwise_xor(tf.cast(tensor, tf.uint64), shift), tensor.dtype)


def extent_of(tensor: tf.Tensor, axis: int) -> Any:
    """Return an extent of a replica's tensor; an int where it is known while tracing."""
    extent = tensor.shape[axis]
    return tf.shape(tensor)[axis] if extent is None else extent


def find_start(extent: Any, dtype: tf.DType, replica: Replica) -> tf.Tensor:
    """Return the position in the batch at which a replica's part of an axis begins, from the extent of the part."""
    return tf.cast(_per_held(extent, replica) * _start_held(replica), dtype)


def find_whole(extent: tf.Tensor, replica: Replica) -> tf.Tensor:
    """Return the extent in the batch of what has so many entries on a replica; it may be a vector of one."""
    return extent // tf.cast(replica.held, extent.dtype) * tf.cast(replica.global_samples, extent.dtype)


def count_in_batch(places: Any, replica: Replica) -> Any:
    """Return the places of the entries of a sparse array, which begin with the number of a sample, in the whole batch."""
    if places is None:  # it is not read
        return None
    start = tf.cast(_start_held(replica), places.dtype)
    return places + start * tf.one_hot(0, extent_of(places, 1), dtype=places.dtype)


def find_in_part(positions: tf.Tensor, extent: Any, replica: Replica, inside: bool) -> tf.Tensor:
    """Return positions along a divided axis, counted from the start of this replica's part, and -1 for those in others.

    Those outside the axis are outside each part, too, so that operations reject them as on one device. If all are `inside`,
    they may have columns, of which the first one is along the axis.
    """
    start = find_start(extent, positions.dtype, replica)
    if inside:
        columns = positions.shape.rank != 1
        return positions - (
            start * tf.one_hot(0, extent_of(positions, -1), dtype=start.dtype) if columns else start
        )
    whole = tf.cast(_per_held(extent, replica) * replica.global_samples, positions.dtype)
    own = positions - start - tf.cast(positions < 0, start.dtype)  # -1 is no position outside of the axis
    mine = (own >= 0) & (own < tf.cast(extent, own.dtype))
    return tf.where(mine | (positions < 0) | (positions >= whole), own, tf.constant(-1, own.dtype))


def _per_held(extent: Any, replica: Replica) -> Any:
    return (tf.cast(extent, tf.int32) if isinstance(extent, tf.Tensor) else extent) // replica.held


def _start_held(replica: Replica) -> Any:
    """Return the position of a replica's first held sample in the batch; a borrowed one is the last sample."""
    start, last = replica.samples_before, replica.global_samples - replica.held
    return min(start, last) if isinstance(start, int) and isinstance(last, int) else tf.minimum(start, last)
