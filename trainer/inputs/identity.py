"""The identity of an input: a checksum of its data, by which a backup recognizes it, and its `tf.data` pipeline."""

from __future__ import annotations

import dis
import hashlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...callbacks.backup.settings import text_of_value
from ...compat.tensorflow_private.dataset_graph import held_data, numbers_of, pipeline_checksum, read_dataset
from ...compat.tensorflow_private.pipelines import in_any_order
from ...distribute.workers.agreement import gather_json, place_among_workers, spans_workers
from ...distribute.workers.error_text import is_own_file

MOST_BYTES = 2**26
"""This many bytes of each array are read: all of a small one, 64 blocks spread over a large one."""
_BLOCKS = 64
_CONSTANTS = (bool, int, float, complex, str, bytes, tuple, frozenset, np.ndarray, np.generic)
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
    except (AttributeError, KeyError, TypeError, ValueError, tf.errors.OpError):
        return None  # a variant has no NumPy dtype
    return digest.hexdigest()


def text_of_function(function: Any) -> str:
    """The code and values of a Python function without its decorators, and of what it reads from its module.

    That is the user's own functions, read in the same way, and constants: numbers, texts, tuples and arrays.
    """
    texts, functions = [], [inspect.unwrap(function)]
    for each in functions:  # grows
        texts.append(text_of_value(each))
        for name, value in _read_from_module(each):
            if not inspect.isfunction(value):
                texts.append(f"{name} {text_of_value(value)}")
            elif value not in functions and is_own_file(value.__code__.co_filename):
                functions.append(value)
    return "".join(texts)


def _read_from_module(function: Any) -> Iterator[tuple[str, Any]]:
    """The names that a function reads from its module and never sets, with their values: functions and constants."""
    function = getattr(function, "__func__", getattr(function, "func", function))
    codes = [function.__code__] if inspect.isfunction(function) else []
    read, written = set(), set()
    for code in codes:  # grows
        codes += [each for each in code.co_consts if inspect.iscode(each)]
        for step in dis.get_instructions(code):
            read |= {step.argval} if step.opname == "LOAD_GLOBAL" else set()
            written |= {step.argval} if step.opname == "STORE_GLOBAL" else set()
    for name in sorted(read - written):
        value = getattr(function, "__globals__", {}).get(name)
        if isinstance(value, _CONSTANTS) or inspect.isfunction(value):
            yield name, value


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
            f"`x` has {_shown(first)} on worker 0 and {_shown(second)} on worker {other}, but {sharer}: samples would be "
            f"lost. {_TURN_OFF if distributed else _KEEP}"
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
            f"{what} on worker {other} than on worker 0, but {sharer}: samples are lost if each gives its own. Give one, "
            "from one seed, or a function of tf.distribute.InputContext."
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
        pipeline_checksum(dataset, text_of_function) or checksum(held_data(dataset)),
    ]


def _shown(shards: list[list[int]]) -> str:
    return " and ".join(f"`shard({number}, {index})`" for number, index in shards) or "no `shard`"
