"""How the rows of a global batch are shared out over replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ...distribute.replicas import local_replica_index
from ...distribute.step_context import StepContext
from ...distribute.workers.agreement import place_among_workers
from ..inputs.rows import slice_rows


def replica_bounds(global_rows: Any, num_replicas: int, replica: Any) -> tuple[Any, Any]:
    """Rows `[first, last)` of the global batch that belong to `replica`: floor(r B / R) to floor((r + 1) B / R).

    Args:
        global_rows: int or int32 scalar tensor, B.
        num_replicas: int, R.
        replica: int or int32 scalar tensor, r.

    Returns:
        Two ints when all arguments are ints, else two int32 scalar tensors.
    """
    return (replica * global_rows) // num_replicas, ((replica + 1) * global_rows) // num_replicas


def run_on_replicas(
    strategy: tf.distribute.Strategy,
    fn: Callable[[Any, StepContext], Any],
    batch: Any,
    global_rows: Any,
    training: bool,
    weigh_losses: bool = False,
    worker_rows: tf.Tensor | None = None,
) -> Any:
    """Runs `fn(slice, step)` on every replica with its rows of `batch`.

    A replica without rows gets the first row of the batch and a step whose `rows` are 0.

    Args:
        strategy: the strategy; its number of replicas R.
        fn: called in replica context; may return a nest of tensors.
        batch: nest of tensors `[global_rows, ...]` (dense, ragged or sparse) and Nones; the whole global batch, or
            this worker's part of it.
        global_rows: int, or int32 scalar tensor when it is not known while tracing.
        training: for the `StepContext`.
        weigh_losses: for the `StepContext`.
        worker_rows: int32 `[workers]` or None; the rows of each worker, where `batch` holds this worker's rows only.

    Returns:
        What `strategy.run` returns.

    Context: cross-replica, in a `tf.function` or eager.
    """
    count = strategy.num_replicas_in_sync
    leaves = keras.tree.flatten(batch)
    if count == 1:

        def alone(leaves: list[Any]) -> Any:
            step = StepContext(0, 1, global_rows, global_rows, training, weigh_losses)
            return fn(keras.tree.pack_sequence_as(batch, leaves), step)

        return strategy.run(alone, args=(leaves,))

    bounds = _bounds(strategy, global_rows, worker_rows)
    present = [leaf for leaf in leaves if leaf is not None]

    def part(context: Any) -> list[Any]:
        first, last, _ = bounds(context.replica_id_in_sync_group)
        rows = last - first
        if isinstance(rows, int):
            first, last = (first, last) if rows else (0, 1)
        else:
            first, last = tf.where(rows > 0, first, 0), tf.where(rows > 0, last, 1)
        return [slice_rows(leaf, first, last) for leaf in present]

    parts = strategy.experimental_distribute_values_from_function(part)

    def one_of_many(parts: list[Any]) -> Any:
        values = iter(parts)
        own = [None if leaf is None else next(values) for leaf in leaves]
        replica = global_replica_id(strategy)
        first, last, before = bounds(replica)
        step = StepContext(replica, count, last - first, global_rows, training, weigh_losses)
        step.first_row = before + first
        return fn(keras.tree.pack_sequence_as(batch, own), step)

    return strategy.run(one_of_many, args=(parts,))


def _bounds(
    strategy: tf.distribute.Strategy, global_rows: Any, worker_rows: tf.Tensor | None
) -> Callable[[Any], tuple[Any, Any, Any]]:
    """A function of the replica: its rows `[first, last)` in the batch, and the rows of the workers before its own."""
    count = strategy.num_replicas_in_sync
    if worker_rows is None:
        return lambda replica: (*replica_bounds(global_rows, count, replica), 0)
    each = len(strategy.extended.worker_devices)
    me, _ = place_among_workers(strategy)
    before = tf.reduce_sum(worker_rows[:me])
    return lambda replica: (*replica_bounds(worker_rows[me], each, replica % each), before)


def global_replica_id(strategy: tf.distribute.Strategy) -> int:
    """This replica's number over all workers, known while tracing. Context: replica."""
    static = tf.get_static_value(tf.distribute.get_replica_context().replica_id_in_sync_group)
    if static is not None:
        return int(static)
    per_worker = len(strategy.extended.worker_devices)
    resolver = strategy.cluster_resolver
    worker = resolver.task_id if resolver is not None and resolver.task_id is not None else 0
    return worker * per_worker + local_replica_index()
