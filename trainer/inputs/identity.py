"""The identity of an input: a checksum of its data, by which a backup recognizes it, and its `tf.data` pipeline."""

from __future__ import annotations

import hashlib
import inspect
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...callbacks.backup.settings import plain
from ...compat.tensorflow_private.dataset_graph import held_data, numbers_of, pipeline_checksum, read_dataset
from ...distribute.workers.agreement import gather_json, place_among_workers, spans_workers

MOST_BYTES = 2**26
"""This many bytes of each array are read: all of a small one, 64 blocks spread over a large one."""
_BLOCKS = 64
_KEEP = (
    "Remove `shard`, or give a function of tf.distribute.InputContext that returns this worker's shard in batches of "
    "context.get_per_replica_batch_size(global_batch_size) samples."
)
_TURN_OFF = (
    "Remove `shard`, or set options.experimental_distribute.auto_shard_policy to "
    "tf.data.experimental.AutoShardPolicy.OFF."
)


def checksum(structure: Any) -> str | None:
    """A checksum of the structure, dtypes, shapes and samples of a nest of arrays; None where samples cannot be sliced."""
    digest = hashlib.blake2b(digest_size=8)
    try:
        for path, leaf in keras.tree.flatten_with_path(structure):
            digest.update(f"{path}:".encode())
            for part in tf.nest.flatten(leaf, expand_composites=True):
                for piece in _pieces(part):
                    digest.update(piece)
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        tf.errors.OpError,
    ):  # a variant has no NumPy dtype
        return None
    return digest.hexdigest()


def text_of_function(function: Any) -> str:
    """The name, compiled code and bound values of a Python function, without its decorators."""
    return str(plain(inspect.unwrap(function)))


def _pieces(leaf: Any) -> Iterator[bytes]:
    """The data for the checksum of one array."""
    if leaf is None:
        yield b"None;"
        return
    if not hasattr(leaf, "shape") or not hasattr(leaf, "__getitem__"):
        leaf = np.asarray(leaf)
    shape, dtype = tuple(leaf.shape), np.dtype(getattr(leaf.dtype, "as_numpy_dtype", leaf.dtype))
    yield f"{dtype.name}{shape};".encode()
    if not shape:
        yield _bytes(leaf)
        return
    samples = int(shape[0])
    sample_bytes = max(1, int(np.prod([int(size) for size in shape[1:]])) * max(dtype.itemsize, 1))
    if samples * sample_bytes <= MOST_BYTES:
        starts, count = range(0, samples, max(1, MOST_BYTES // sample_bytes)), samples
    else:
        count = max(1, MOST_BYTES // _BLOCKS // sample_bytes)
        starts = np.unique(np.linspace(0, samples - count, _BLOCKS).astype(int)).tolist()
    for start in starts:
        yield _bytes(leaf[start : start + count])


def _bytes(part: Any) -> bytes:
    array = np.asarray(part)
    if array.dtype.kind in "OSU":
        return b"".join(b"%d:%b" % (len(text), text) for text in map(_text, array.reshape(-1).tolist()))
    return array.tobytes()


def _text(item: Any) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode("utf-8", "surrogatepass")


def check_same_pipeline(dataset: Any, strategy: tf.distribute.Strategy) -> None:
    """Rejects a dataset that each worker has sharded already; all workers must call it. With one worker nothing is done.

    A `shard` that is the same on all workers, such as a split for validation, does not shard over workers.

    Args:
        dataset: `tf.data.Dataset`, or the `tf.distribute.DistributedDataset` made of it.
        strategy: whose workers.

    Raises:
        ValueError: `shard` of the pipeline differs between workers: samples would be lost.

    Warns:
        UserWarning: the pipelines differ otherwise, for instance in their files or in the order of a `shuffle`.
    """
    original = read_dataset(dataset)
    if original is None or not spans_workers(strategy):
        return
    distributed = original is not dataset
    sharer = "TensorFlow shards it" if distributed else "each replica takes its part of a batch"
    # TensorFlow shards files before a shuffle. Seeds of 0 are no seed, and each process draws another order.
    seeds = numbers_of(original, "_seed", "_seed2") + [[]] * (original.options().deterministic is False)
    mine = [
        [each for each in numbers_of(original, "_num_shards", "_index") if each[0] != 1],
        [] if distributed else [sum(each) or place_among_workers(strategy)[0] for each in seeds],
        pipeline_checksum(original, text_of_function) or checksum(held_data(original)),
    ]
    everyone = gather_json(mine, strategy)
    other = next((number for number, each in enumerate(everyone) if each != everyone[0]), None)
    if other is None:
        return
    (first, order, _), (second, other_order, _) = everyone[0], everyone[other]
    if first != second:
        raise ValueError(
            f"`x` has {_shown(first)} on worker 0 and {_shown(second)} on worker {other}, but {sharer}: samples would be "
            f"lost. {_TURN_OFF if distributed else _KEEP}"
        )
    if order != other_order:
        problem = (
            f"has another random order on worker {other} than on worker 0, but {sharer}: samples are lost. Give `shuffle` "
            "one seed on all workers, or call keras.utils.set_random_seed; leave options.deterministic unset."
        )
    else:
        problem = (
            f"is another tf.data pipeline on worker {other} than on worker 0 (data, files, constants or functions), but "
            f"{sharer}: samples are lost if each gives its own. Give one, or a function of tf.distribute.InputContext."
        )
    warnings.warn(f"`x` {problem}", stacklevel=2)


def _shown(shards: list[list[int]]) -> str:
    return " and ".join(f"`shard({number}, {index})`" for number, index in shards) or "no `shard`"
