"""Whether the `tf.data` pipelines of all workers are the same, as each replica takes its rows of every batch."""

from __future__ import annotations

import warnings
from typing import Any

import tensorflow as tf

from ...compat.dataset_graph import held_data, pipeline_checksum, read_dataset, shards_of
from ...distribute.workers.agreement import gather_json, spans_workers
from .content import checksum, text_of_function

_KEEP = (
    "Remove `shard`, or give a function of tf.distribute.InputContext that returns this worker's shard in batches of "
    "context.get_per_replica_batch_size(global_batch_size) rows."
)
_TURN_OFF = (
    "Remove `shard`, or set options.experimental_distribute.auto_shard_policy to "
    "tf.data.experimental.AutoShardPolicy.OFF."
)


def check_same_pipeline(dataset: Any, strategy: tf.distribute.Strategy) -> None:
    """Rejects a dataset that each worker has sharded already; all workers must call it. With one worker nothing is done.

    A `shard` that is the same on all workers, such as a split for validation, is no sharding over workers.

    Args:
        dataset: `tf.data.Dataset`, or the `tf.distribute.DistributedDataset` made of it.
        strategy: whose workers.

    Raises:
        ValueError: `shard` of the pipeline differs between workers: samples would be lost.

    Warns:
        UserWarning: the pipelines differ otherwise, for instance in their files.
    """
    original = read_dataset(dataset)
    if original is None or not spans_workers(strategy):
        return
    distributed = original is not dataset
    mine = [
        shards_of(original),
        pipeline_checksum(original, text_of_function) or checksum(held_data(original)),
    ]
    everyone = gather_json(mine, strategy)
    other = next((number for number, each in enumerate(everyone) if each != everyone[0]), None)
    if other is None:
        return
    (first, _), (second, _) = everyone[0], everyone[other]
    if first != second:
        sharer = "TensorFlow shards it again" if distributed else "each replica takes its rows of every batch"
        raise ValueError(
            f"`x` has {_shown(first)} on worker 0 and {_shown(second)} on worker {other}, but {sharer}: samples would be "
            f"lost. {_TURN_OFF if distributed else _KEEP}"
        )
    warnings.warn(
        f"`x` is another tf.data pipeline on worker {other} than on worker 0 (data, files, constants or functions), but "
        f"{'TensorFlow shards it' if distributed else 'each replica takes its rows of every batch'}: samples are lost if "
        "each worker gives its own. Give the same pipeline everywhere, or a function of tf.distribute.InputContext.",
        stacklevel=2,
    )


def _shown(shards: list[list[int]]) -> str:
    return " and ".join(f"`shard({number}, {index})`" for number, index in shards) or "no `shard`"
