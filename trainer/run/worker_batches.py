"""Input that each worker reads itself: a step has the samples of all workers, and the last worker's data ends the pass.

A worker whose data has ended continues with a borrowed batch without counted samples, until all have ended.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ...distribute.replicas import all_reduce_sum, local_replica_index
from ...distribute.workers.agreement import place_among_workers
from ..inputs.batch import sample_count


def own_batch(optional: Any, borrowed: Any) -> tuple[Any, tf.Tensor]:
    """This worker's batch and its number of samples; a borrowed batch and 0 where its data has ended.

    Args:
        optional: `tf.experimental.Optional` of a batch.
        borrowed: any batch of the same structure.

    Returns:
        The batch, and its number of samples as an int32 scalar tensor.
    """
    batch = tf.cond(optional.has_value(), optional.get_value, lambda: borrowed)
    return batch, tf.where(optional.has_value(), tf.cast(sample_count(batch), tf.int32), 0)


def rows_of_workers(strategy: tf.distribute.Strategy, rows: tf.Tensor) -> tf.Tensor:
    """The number of samples of every worker, int32 `[workers]`, on every worker: one small all-reduce.

    Context: cross-replica, in a `tf.function` or eager.
    """
    me, workers = place_among_workers(strategy)

    def on_replica() -> tf.Tensor:
        mine = rows if local_replica_index() == 0 else tf.zeros_like(rows)
        return all_reduce_sum([tf.one_hot(me, workers, dtype=tf.int32) * mine])[0]

    return strategy.experimental_local_results(strategy.run(on_replica))[0]


def empty_batch(spec: Any) -> Any:
    """A batch of one sample of zeros, for a worker that never had any data.

    Args:
        spec: nest of `tf.TensorSpec`, `tf.RaggedTensorSpec` and `tf.SparseTensorSpec`.
    """
    return tf.nest.map_structure(_empty, spec)


def _empty(spec: Any) -> Any:
    if spec == tf.type_spec_from_value(None):
        return None
    shape = [1 if size is None else size for size in spec.shape]
    if isinstance(spec, tf.RaggedTensorSpec):
        splits = [
            tf.constant([0, 0] if depth == 0 else [0], spec.row_splits_dtype)
            for depth in range(spec.ragged_rank)
        ]
        values = tf.zeros([0, *shape[spec.ragged_rank + 1 :]], spec.dtype)
        return tf.RaggedTensor.from_nested_row_splits(values, splits, validate=False)
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensor(tf.zeros([0, len(shape)], tf.int64), tf.zeros([0], spec.dtype), shape)
    return tf.zeros(shape, spec.dtype)
