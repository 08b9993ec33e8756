"""Whether all workers have the same input, where each must give all samples."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ...compat.tensorflow_private.dataset_graph import held_data, numbers_of, pipeline_checksum, read_dataset
from ...compat.tensorflow_private.pipelines import in_any_order
from ...distribute.workers.agreement import gather_json, place_among_workers, spans_workers
from ...state.identity.data import checksum
from ...state.identity.settings import text_of_value

_KEEP = (
    "Remove `shard`, or pass a function of tf.distribute.InputContext that returns this worker's shard in batches of "
    "context.get_per_replica_batch_size(global_batch_size) samples."
)
_TURN_OFF = (
    "Remove `shard`, or set options.experimental_distribute.auto_shard_policy to "
    "tf.data.experimental.AutoShardPolicy.OFF."
)


def check_same_input(
    x: Any, strategy: tf.distribute.Strategy, content: Callable[[], str | None] | None = None
) -> None:
    """Compares the input of each worker, where each must give all samples. All workers must call it; one does nothing.

    A `shard` of the pipeline that differs between workers is a ValueError, because samples would be lost. One that is the
    same on all workers, such as a split for validation, does not shard over workers. Other differences, for instance in
    their files or in the order of a `shuffle`, are warnings.

    `x` is a `tf.data.Dataset`, the `tf.distribute.DistributedDataset` made of it, or another input with a checksum of its
    data, `content`.
    """
    dataset = read_dataset(x)
    if not spans_workers(strategy) or (dataset is None and content is None):
        return
    distributed = content is None and dataset is not x
    sharer = "TensorFlow shards it" if distributed else "each replica takes its part of a batch"
    everyone = gather_json(
        [[], [], content()] if content else _known_of_pipeline(dataset, distributed, strategy), strategy
    )
    other = next((number for number, each in enumerate(everyone) if each != everyone[0]), None)
    if other is None:
        return
    (first, order, _), (second, other_order, _) = everyone[0], everyone[other]
    if first != second:
        raise ValueError(
            f"`x` has {_show_shards(first)} on worker 0 and {_show_shards(second)} on worker {other}, but {sharer}: "
            f"samples would be lost. {_TURN_OFF if distributed else _KEEP}"
        )
    if order != other_order:
        problem = (
            f"has another random order on worker {other} than on worker 0, but {sharer}: samples are lost. Give `shuffle` "
            "one seed on all workers, or call keras.utils.set_random_seed; do not set deterministic=False."
        )
    else:
        pipeline = "is another tf.data pipeline (data, files, constants or functions)"
        what = "has other values" if content else pipeline
        problem = (
            f"{what} on worker {other} than on worker 0, but {sharer}: samples are lost if each reads its own. Pass the "
            "same, from one seed, or a function of tf.distribute.InputContext."
        )
    warnings.warn(f"`x` {problem}", stacklevel=2)


def _known_of_pipeline(
    dataset: tf.data.Dataset, distributed: bool, strategy: tf.distribute.Strategy
) -> list[Any]:
    """The shards, the seeds and a checksum of a pipeline."""
    # TensorFlow shards files before a shuffle. Seeds of 0 are no seed, and each process draws another order.
    seeds = [] if distributed else numbers_of(dataset, "_seed", "_seed2") + [[]] * in_any_order(dataset)
    return [
        [each for each in numbers_of(dataset, "_num_shards", "_index") if each[0] != 1],
        [sum(each) or place_among_workers(strategy)[0] for each in seeds],
        pipeline_checksum(dataset, text_of_value) or checksum(held_data(dataset)),
    ]


def _show_shards(shards: list[list[int]]) -> str:
    return " and ".join(f"`shard({number}, {index})`" for number, index in shards) or "no `shard`"
