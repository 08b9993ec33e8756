"""Collectives of shards: reduce-scatter, which leaves each replica its shard of a sum, and all-gather.

They work on packs, so that one is sent while the next is computed. Each replica sends (N-1)/N of the bytes. Branches of a
step may contain them with `if_all`.
"""

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from ...compat.tensorflow_graphs.graphs import graph_function
from ...compat.tensorflow_graphs.guarded_writes import writes_only_where_here
from ...compat.tensorflow_private.strategies import all_gather as gather_on
from ...compat.tensorflow_private.strategies import all_to_all, launchers_of
from ...compat.upstream_places import PerReplica
from ..hardware.devices import computes_on_gpu
from ..mesh import MATRICES, Layout, combine_in_groups, mesh_of, this_replica
from ..replicas import bytes_of_packs, num_replicas, replica_id
from ..step_context import current_step, step_scope
from ..workers.agreement import place_among_workers

_compiled: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def reduce_scatter(matrices: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the sum, over all replicas along the batch, of each matrix's row with this replica's number, in order.

    The shapes are known, and the same on every replica. Context: replica.
    """
    result: list[Any] = [None] * len(matrices)
    for pack in pack_tensors(matrices):
        total = _together(_OWN_SUM, tf.concat([matrices[i] for i in pack], 1), MATRICES)
        for i, shard in zip(pack, tf.split(total, [matrices[i].shape[1] for i in pack])):
            result[i] = shard
    return result


def all_gather(shards: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return, for each flat shard, a matrix with those of all replicas along the batch, bitwise. Context: replica."""
    replicas, _ = _along_batch()
    result: list[Any] = [None] * len(shards)
    for pack in pack_tensors(shards):
        rows = _together(_ALL_SHARDS, tf.concat([shards[i] for i in pack], 0), 0)
        rows = tf.reshape(rows, [replicas, -1])
        for i, part in zip(pack, tf.split(rows, [shards[i].shape.num_elements() for i in pack], 1)):
            result[i] = part
    return result


def sizes_are_known(rows: tf.Tensor) -> bool:
    """Return whether GPUs can exchange slices without size queries by the host (`gather_dense`). Context: replica."""
    step = current_step()
    if tf.executing_eagerly() or not computes_on_gpu():
        return False
    strategy = tf.distribute.get_strategy()
    if len(strategy.extended.worker_devices) == strategy.num_replicas_in_sync:
        return True
    if step is None or not (isinstance(step.samples, int) and isinstance(step.global_samples, int)):
        return False
    return step.samples * num_replicas() == step.global_samples and rows.shape.is_fully_defined()


def gather_dense(rows: tf.Tensor) -> tf.Tensor:
    """Return the values of all replicas, concatenated along the first axis, on each of them.

    In one process the sizes along it may differ; over several workers they are equal, and the shape is known.

    Context: replica, in a graph.
    """
    return _together(_ALL_SHARDS, rows)


def gather_on_host(strategy: tf.distribute.Strategy, shards: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the shards of all replicas; `shards` are those of the local ones. Context: eager, on every worker."""
    with tf.device("CPU:0"):
        if len(shards) == strategy.num_replicas_in_sync:
            return [tf.identity(shard) for shard in shards]
        together = tf.identity(_over_workers(strategy, _ALL_SHARDS, list(shards))[0])
        return tf.split(together, strategy.num_replicas_in_sync)


def scatter_from_first(strategy: tf.distribute.Strategy, value: tf.Tensor, layout: Layout) -> list[tf.Tensor]:
    """Return the local replicas' parts of the first replica's tensor, flat. Context: eager, on every worker."""
    replicas = range(strategy.num_replicas_in_sync)
    rows = tf.stack([tf.reshape(layout.part(value, replica), [-1]) for replica in replicas])
    devices = strategy.extended.worker_devices
    if len(devices) == strategy.num_replicas_in_sync:
        return tf.unstack(rows)
    chief, nothing = place_among_workers(strategy)[0] == 0, tf.zeros_like(rows)
    brought = [rows if chief and index == 0 else nothing for index in range(len(devices))]
    return _over_workers(strategy, _OWN_SUM, brought)


class _Exchange(NamedTuple):
    """One collective, in one process and over several workers."""

    copied: Callable[[Sequence[tf.Tensor]], list[tf.Tensor]]  # inputs of all replicas -> their results
    launched: Callable[[Any, tf.Tensor], tf.Tensor]  # a launcher and the input of its replica -> its result


def _along_batch() -> tuple[int, Any]:
    """Return how many replicas divide the batch, and this one's place among them. Context: replica."""
    mesh = mesh_of()
    place = mesh.place(this_replica())[0] if mesh.divides_weights else replica_id()
    return mesh.shape[0], place


def _together(exchange: _Exchange, mine: tf.Tensor, along: int | None = None) -> tf.Tensor:
    """Return this replica's result of `exchange` over all replicas' inputs. Context: replica.

    On a mesh that divides weights it is over those along the batch, for `combine_in_groups`, if `along` is given.
    """
    if along is not None and mesh_of().divides_weights:
        return combine_in_groups([mine], [0], [along])[0]

    def across(strategy: tf.distribute.Strategy, values: Any) -> Any:
        local = list(strategy.experimental_local_results(values))
        if len(local) == strategy.num_replicas_in_sync:
            return PerReplica(exchange.copied(local))
        return PerReplica(_over_workers(strategy, exchange, local))

    return tf.distribute.get_replica_context().merge_call(across, args=(tf.identity(mine),))


def _over_workers(
    strategy: tf.distribute.Strategy, exchange: _Exchange, local: list[tf.Tensor]
) -> list[tf.Tensor]:
    """Do the same over several workers; eagerly in a graph, which launches the local replicas' collectives at once."""
    launchers = launchers_of(strategy)

    def launch(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [exchange.launched(launcher, value) for launcher, value in zip(launchers, values, strict=True)]

    if not tf.executing_eagerly():
        return launch(local)
    key = exchange, local[0].dtype, tuple(local[0].shape)
    known = _compiled.setdefault(strategy, {})
    if key not in known:
        known[key] = graph_function(launch)
    return known[key](local)


def _copy_sums(local: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    sums = []
    for number, destination in enumerate(local):
        with tf.device(destination.device):
            sums.append(tf.add_n([rows[number] for rows in local]))
    return sums


def _launch_sum(launcher: Any, rows: tf.Tensor) -> tf.Tensor:
    received = all_to_all(launcher, rows)
    with tf.device(received.device):
        return tf.reduce_sum(received, 0)


def _copy_all(local: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    gathered = []
    for destination in local:
        with tf.device(destination.device):
            gathered.append(tf.concat(list(local), 0))
    return gathered


_OWN_SUM = _Exchange(_copy_sums, _launch_sum)
_ALL_SHARDS = _Exchange(_copy_all, gather_on)


def pack_tensors(tensors: Sequence[tf.Tensor]) -> list[list[int]]:
    """Return groups of indices, as `pack_neighbours`, for the packs of this strategy."""
    sizes = [((tensor.shape.num_elements() or 0) * tensor.dtype.size, tensor.dtype) for tensor in tensors]
    return pack_neighbours(sizes, bytes_of_packs())


def pack_neighbours(sizes: Sequence[tuple[int, tf.DType]], most: int) -> list[list[int]]:
    """Return groups of indices: neighbours of one dtype, up to `most` bytes; a larger tensor is a separate pack."""
    packs: list[list[int]] = []
    left, last = 0, None
    for index, (size, dtype) in enumerate(sizes):
        if not packs or dtype != last or size > left:
            packs.append([])
            left, last = most, dtype
        packs[-1].append(index)
        left -= size
    return packs


def own_part_of_slices(slices: tf.IndexedSlices, shape: Sequence[int]) -> tf.Tensor:
    """Return this replica's flat part of the dense value of slices with unique rows; only the part becomes dense.

    Context: replica.
    """
    replicas, place = _along_batch()
    rows, width = shape[0], math.prod(shape[1:])
    size = -(-rows * width // replicas)
    begin = tf.cast(place, tf.int64) * size
    first = begin // width
    count = min(rows, -(-size // width) + 1)
    places = tf.cast(slices.indices, tf.int64) - first
    inside = tf.logical_and(places >= 0, places < count)
    values = tf.reshape(slices.values, [-1, width])
    dense = tf.math.unsorted_segment_sum(values, tf.where(inside, places, -1), count)
    skipped = begin - first * width
    flat = tf.pad(tf.reshape(dense, [-1]), [[0, size]])
    return tf.ensure_shape(tf.slice(flat, [skipped], [size]), [size])


def if_all(condition: Any, then: Callable[[], Any], otherwise: Callable[[], Any] | None = None) -> None:
    """Run `then` on every replica where `condition` is true, else `otherwise`; both write, and may contain collectives.

    TensorFlow rejects a collective in a conditional of one replica. So the conditional is created once, in cross-replica
    context, and the replicas run again in its branches, like the steps of a loop. The condition, a bool scalar, is the
    same on every replica; each has its own functions, which may hold its tensors. Context: replica.
    """
    step, guarded = current_step(), writes_only_where_here()

    def run(branch: Callable[[], Any] | None) -> None:
        if branch is not None:
            with step_scope(step), guarded():  # it may run in another thread
                branch()

    def across(strategy: tf.distribute.Strategy, conditions: Any, branches: Any) -> None:
        first = strategy.experimental_local_results(conditions)[0]

        def branch(index: int) -> Callable[[], tf.Tensor]:
            def on_replicas() -> tf.Tensor:
                strategy.run(lambda of_replica: run(of_replica(index)), args=(branches,))
                return tf.constant(True)

            return on_replicas

        tf.cond(first, branch(0), branch(1))

    with tf.device("CPU:0"):  # the host must know it, and may know it already
        known = tf.identity(condition)
    tf.distribute.get_replica_context().merge_call(
        across, args=(known, lambda index: (then, otherwise)[index])
    )
