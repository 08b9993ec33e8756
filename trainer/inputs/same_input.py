"""Checks that all workers have the same input, where each must yield all samples."""

import functools
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ...compat.tensorflow_private.dataset_graph import (
    find_held_data,
    numbers_of,
    pipeline_checksum,
    read_dataset,
    shares_service,
)
from ...compat.tensorflow_private.pipelines import in_any_order, transformations
from ...distribute.workers.agreement import gather_json, gather_numbers, place_among_workers, spans_workers
from ...distribute.workers.peer_monitor import SAME_EVERYWHERE
from ...state.identity.described_functions import text_of_value
from ...state.identity.described_values import checksum
from ...state.random_state import find_reached
from .sources.source import Source

_MUST = "The input must yield the same global batches on every worker."
_FLOAT = 2**52  # integers below it are exact in float64
_KEEP = (
    "Remove `shard`, or pass a function of tf.distribute.InputContext that returns this worker's shard in batches of "
    "context.get_per_replica_batch_size(global_batch_size) samples."
)
_TURN_OFF = (
    "Remove `shard`, or set options.experimental_distribute.auto_shard_policy to "
    "tf.data.experimental.AutoShardPolicy.OFF."
)
_FIX = """ Pass a function of tf.distribute.InputContext, whose batches have the samples of one replica:

    def make_dataset(context):
        return {dataset}

    model.fit(make_dataset)
"""
_SHARD = (
    "dataset.unbatch().shard(context.num_input_pipelines, context.input_pipeline_id).batch(\n"
    "            context.get_per_replica_batch_size({}))"
)


def check_same_input(
    x: Any, strategy: tf.distribute.Strategy, kind: str = "tf.data.Dataset", call: str = "fit"
) -> None:
    """Compare the inputs of the workers, before they are read. All workers must call it; with one it does nothing.

    Another `call` that reads it, another kind, or a `shard` of the pipeline that differs raises a ValueError, because
    samples would be lost. A `shard` that is the same on all workers, such as a split for validation, does not shard over
    workers.
    Other differences between pipelines, for instance in their files or in the order of a `shuffle`, are warnings:
    `check_same_data` compares what is read.

    `x` is a `tf.data.Dataset`, the `tf.distribute.DistributedDataset` made of it, or another input.
    """
    if not spans_workers(strategy):
        return
    dataset = read_dataset(x)
    if not callable(x):  # a function of `tf.distribute.InputContext`
        _check_not_split(x, dataset)
    distributed = dataset is not None and dataset is not x
    known = [[], [], None] if dataset is None else _identify_pipeline(dataset, distributed, strategy)
    everyone = gather_json([call, kind, *known], strategy)
    other = next((number for number, each in enumerate(everyone) if each != everyone[0]), None)
    if other is None:
        return
    if (theirs := everyone[other][0]) != everyone[0][0]:
        raise ValueError(
            f"worker 0 calls `{everyone[0][0]}`, and worker {other} `{theirs}`: every worker must make the same calls, on "
            f"equally many batches. {SAME_EVERYWHERE}"
        )
    (_, kind, first, order, _), (_, other_kind, second, other_order, _) = everyone[0], everyone[other]
    sharer = "TensorFlow shards it" if distributed else "each replica takes its part of a batch"
    if other_kind != kind:
        raise ValueError(
            f"`x` is a {kind} on worker 0 and a {other_kind} on worker {other}: pass the same kind of input."
        )
    if first != second:
        raise ValueError(
            f"`x` has {_show_shards(first)} on worker 0 and {_show_shards(second)} on worker {other}, but {sharer}: "
            f"samples would be lost. {_TURN_OFF if distributed else _KEEP}"
        )
    if order != other_order:
        problem = (
            f"is shuffled differently on worker {other} and on worker 0, but {sharer}: samples are lost. Pass `shuffle` "
            "one seed on all workers, or call keras.utils.set_random_seed; do not set deterministic=False."
        )
    else:
        problem = (
            f"differs between worker {other} and worker 0 (in data, files, constants or functions), but "
            f"{sharer}: samples are lost if each reads its own. Pass the same, from one seed, or a function of "
            "tf.distribute.InputContext."
        )
    warnings.warn(f"`x` {problem}", stacklevel=2)


def _check_not_split(x: Any, dataset: tf.data.Dataset | None) -> None:
    """Reject an input that is split over workers by construction; `dataset` is the one that it reads."""
    fix = "x.rebatch(context.get_per_replica_batch_size(64))"
    source = "reads a part of the elements of a tf.data service (dynamic sharding, or a `job_name`)"
    if dataset is None or not shares_service(dataset):
        ray: Any = sys.modules.get("ray.data")
        steps = [] if dataset is None else transformations(dataset)
        held = {"x": x if dataset is None else [function for step in steps for function in step.python]}
        shards = [shard for _, shard in find_reached(held, (ray.DataIterator,))] if ray is not None else []
        if all(getattr(shard, "world_size", lambda: 1)() == 1 for shard in shards):
            return
        source = "reads a shard of a Ray dataset"
        if x is shards[0]:
            fix = 'x.to_tf("features", "labels", batch_size=context.get_per_replica_batch_size(64))'
    raise ValueError(
        f"`x` {source}, so that every worker has its own samples, but each replica takes its part of a batch: samples would "
        f"be lost.{_FIX.format(dataset=fix)}"
    )


def describe_counts(batches: Sequence[str]) -> str:
    """Return the error of an input that has given each worker another number of batches."""
    each = ", ".join(f"{count} on worker {number}" for number, count in enumerate(batches))
    return f"{_MUST} Batches so far: {each}. {SAME_EVERYWHERE}"


def is_unsharded(dataset: tf.data.Dataset, strategy: tf.distribute.Strategy) -> bool:
    """Return whether functions of `tf.distribute.InputContext` have returned the same pipeline on all workers.

    Its files may differ between machines, so `check_same_data` compares what is read. The auto-shard policy OFF allows it.
    """
    policy = dataset.options().experimental_distribute.auto_shard_policy
    mine = [policy == tf.data.experimental.AutoShardPolicy.OFF, *_identify_pipeline(dataset, True, strategy)]
    return not any(each[0] or each != mine for each in gather_json(mine, strategy))


def check_same_data(source: Source, strategy: tf.distribute.Strategy, whole: bool = False) -> None:
    """Compare what the workers have read. All must call it; with one it does nothing.

    Raise a ValueError on all workers for different data, and for equal data from a function of
    `tf.distribute.InputContext`. If the input draws random numbers, and a part of the batches is the same everywhere, such
    as the targets, the samples are the same and their augmentation differs, which is only a warning. After a `whole` pass,
    targets that are the same for all samples say nothing about these.
    """
    if source.digest is None or not spans_workers(strategy):
        return
    mine = [int(each) % _FLOAT for each in np.reshape(source.digest, -1)]
    rows = gather_numbers(
        [source.read, functools.reduce(lambda all, each: (31 * all + each) % _FLOAT, mine)], strategy
    )
    other = next((number for number, row in enumerate(rows) if row != rows[0]), None)
    size = source.batch_size or source.usual_batch_size or 64
    if source.per_worker and other is None and any(mine):
        raise ValueError(
            f"`x` is a function of tf.distribute.InputContext that returns the same samples for each of {len(rows)} "
            f"workers, so each would count {len(rows)} times. Pass the dataset itself, or shard it; or set its option "
            "experimental_distribute.auto_shard_policy to OFF if this is intended."
            + _FIX.format(dataset=_SHARD.format(size))
        )
    if source.per_worker or other is None:
        return
    if any(row[0] != rows[0][0] for row in rows):
        raise ValueError(describe_counts([f"{row[0]:.0f}" for row in rows]))
    draws, tensors = zip(*gather_json([source.draws(), mine], strategy))
    columns = [*zip(*tensors)]  # of each tensor: its hashes, and whether its samples differ
    known = zip(columns[::2], columns[1::2])
    if not (all(draws) and any(len({*hashes}) == 1 and (differ[0] or not whole) for hashes, differ in known)):
        raise ValueError(
            f"{_MUST} `x` yields different samples on worker {other} and on worker 0, but each replica takes its part of a "
            "batch: samples would be lost. Pass all workers the same data in the same order, one seed for each `shuffle` "
            "(keras.utils.set_random_seed). Or does each worker read its own samples?"
            + _FIX.format(dataset=f"dataset.rebatch(context.get_per_replica_batch_size({size}))")
        )
    warnings.warn(
        f"`x` draws different random numbers on workers 0 and {other}. A part of each batch is the same, so this is "
        "taken for augmentation of the same samples. If these differ, pass a function of tf.distribute.InputContext.",
        stacklevel=2,
    )


def _identify_pipeline(
    dataset: tf.data.Dataset, distributed: bool, strategy: tf.distribute.Strategy
) -> list[Any]:
    """Return the shards, the seeds and a checksum of a pipeline."""
    # TensorFlow shards files before a shuffle. Seeds of 0 mean no seed: each process draws its own order.
    seeds = [] if distributed else numbers_of(dataset, "_seed", "_seed2") + [[]] * in_any_order(dataset)
    return [
        [each for each in numbers_of(dataset, "_num_shards", "_index") if each[0] != 1],
        [sum(each) or place_among_workers(strategy)[0] for each in seeds],
        pipeline_checksum(dataset, text_of_value) or checksum(find_held_data(dataset)),
    ]


def _show_shards(shards: list[list[int]]) -> str:
    return " and ".join(f"`shard({number}, {index})`" for number, index in shards) or "no `shard`"
