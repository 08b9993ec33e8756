"""What the workers of one training have to tell each other about backups: small byte strings, and one number.

Context: host. Every worker calls the same function at the same step: the calls are collectives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ..distribute.peer_watch import meeting


def num_workers(strategy: tf.distribute.Strategy) -> int:
    """Worker processes that run the same step together; 1 for every strategy within one process."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return 1
    return max(1, strategy.num_replicas_in_sync // len(strategy.extended.worker_devices))


def worker_index(strategy: tf.distribute.Strategy) -> int:
    """This worker's number, 0 to `num_workers - 1`; replicas are numbered in the order of the workers."""
    if num_workers(strategy) == 1:
        return 0
    first = strategy.run(lambda: tf.distribute.get_replica_context().replica_id_in_sync_group)
    ids = [int(i) for i in strategy.experimental_local_results(first)]
    return min(ids) // len(strategy.extended.worker_devices)


def largest(strategy: tf.distribute.Strategy, value: int) -> int:
    """The largest of the values that the workers give; `value` itself where there is one worker."""
    if num_workers(strategy) == 1:
        return value
    return max(int(row[0]) for row in _gather(strategy, np.asarray([value], np.int64)))


def gather_bytes(strategy: tf.distribute.Strategy, payload: bytes) -> list[bytes]:
    """What each worker gave, in the order of the workers; every worker gets all of it."""
    if num_workers(strategy) == 1:
        return [payload]
    size = largest(strategy, len(payload))
    padded = np.zeros(size + 8, np.uint8)
    padded[:8] = np.frombuffer(np.asarray([len(payload)], "<i8").tobytes(), np.uint8)
    padded[8 : 8 + len(payload)] = np.frombuffer(payload, np.uint8)
    rows = [row.astype(np.uint8).tobytes() for row in _gather(strategy, padded.astype(np.int32))]
    return [row[8 : 8 + int.from_bytes(row[:8], "little")] for row in rows]


def _gather(strategy: tf.distribute.Strategy, row: np.ndarray) -> Sequence[np.ndarray]:
    """One row of equal length from every worker: each adds its own to zeros, so the sum holds them all."""
    workers, index, replicas = (
        num_workers(strategy),
        worker_index(strategy),
        len(strategy.extended.worker_devices),
    )
    mine = np.zeros((workers, len(row)), row.dtype)
    mine[index] = row

    @tf.function
    def total(first: Any, others: Any) -> Any:
        def on_replica() -> Any:
            context = tf.distribute.get_replica_context()
            local = context.replica_id_in_sync_group % replicas
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.where(local == 0, first, others))

        return strategy.run(on_replica)

    with meeting(familiar=False):
        result = total(tf.constant(mine), tf.zeros_like(mine))
    return list(strategy.experimental_local_results(result)[0].numpy())
