"""The transformations of a `tf.data.Dataset`, and the end of its iterators."""

import atexit
import contextlib
import functools
import logging
import threading
import time
from typing import Any, NamedTuple

import tensorflow as tf

from ..upstream_places import structure
from .pipelines import datasets_of

_log = logging.getLogger("unisono")
_PATIENCE = 70.0  # seconds; TensorFlow's tuner sleeps for no more than 60
_ending: set[threading.Thread] = set()

# A key in the checkpoint of an iterator for every shuffle in its pipeline that has not reached the end of its input.
LIVE_SHUFFLE = b"epoch_num_random_samples"


class DistributedParts(NamedTuple):
    """The datasets from which a worker makes a distributed dataset."""

    datasets: list[tf.data.Dataset]
    """One dataset, whose elements are the samples of one replica after the other; or one for each replica."""
    replicas: int
    """On all workers."""
    batches: int | None
    """The cardinality of the dataset of global batches that was split; None: a function made the datasets."""


def find_parts(distributed: Any) -> DistributedParts:
    """Return the parts of a `tf.distribute.DistributedDataset`."""
    replicas = distributed._strategy.num_replicas_in_sync
    split = getattr(distributed, "_cloned_datasets", None)
    if split is None:
        return DistributedParts(distributed._datasets, replicas, None)
    return DistributedParts(split, replicas, int(distributed.cardinality))


def count_shuffles(dataset: tf.data.Dataset) -> int:
    """Return the `shuffle` transformations in a pipeline, those inside functions not counted."""
    return sum(type(each).__name__ == "_ShuffleDataset" for each in datasets_of(dataset))


def batch_size(dataset: tf.data.Dataset) -> int | None:
    """Guess the size of a full batch from the last `batch` of a pipeline; None where there is none, or several differ."""
    for name in ("_batch_size", "_batch_sizes"):
        size = getattr(dataset, name, None)
        size = None if size is None else tf.get_static_value(size)
        if size is not None and size.ndim == 0:
            return int(size)
    sizes = {batch_size(part) for part in dataset._inputs()} - {None}
    return sizes.pop() if len(sizes) == 1 else None


def save_exactly(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return the same pipeline; saving its iterator raises an error where it cannot be saved exactly."""
    options = tf.data.Options()
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.FAIL
    return dataset.with_options(options)


def end_iterator(iterator: Any, dataset: Any) -> None:
    """End an iterator and free its memory, in a separate thread; the iterator is empty from then on.

    The thread with which TensorFlow tunes a pipeline checks for the end after up to 60 s, later the longer the pass took.
    The next epoch does not wait for it; the end of the program waits for at most 70 s. No function may still draw from the
    iterator; only those of one `tf.data.Dataset` are ended.
    """
    handle = getattr(iterator, "_iterator_resource", None)
    if handle is None or not isinstance(dataset, tf.data.Dataset):
        return
    nothing = _make_empty(dataset)

    def end() -> None:
        try:
            with contextlib.suppress(tf.errors.OpError):  # then it ends when nothing refers to it
                tf.raw_ops.MakeIterator(dataset=nothing, iterator=handle)
        finally:
            _ending.discard(threading.current_thread())

    thread = threading.Thread(target=end, name="unisono end of an iterator", daemon=True)
    _ending.add(thread)
    thread.start()


@functools.cache
def _serialize_untuned() -> bytes:
    """Return the options of a pipeline without a tuning thread, as TensorFlow writes them."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return options._to_proto().SerializeToString()


def _make_empty(dataset: tf.data.Dataset) -> tf.Tensor:
    """Return `dataset.take(0)`, without tuning, made of raw operations, because the Python API takes milliseconds."""
    kinds: dict[str, Any] = {
        "output_types": structure.get_flat_tensor_types(dataset.element_spec),
        "output_shapes": structure.get_flat_tensor_shapes(dataset.element_spec),
    }
    with tf.device("CPU:0"):
        taken = tf.raw_ops.TakeDataset(
            input_dataset=dataset._variant_tensor, count=tf.constant(0, tf.int64), **kinds
        )
        return tf.raw_ops.OptionsDataset(
            input_dataset=taken, serialized_options=_serialize_untuned(), **kinds
        )


@atexit.register
def _wait_for_ends() -> None:
    """Keep Python from ending while a thread is still inside TensorFlow."""
    until = time.monotonic() + _PATIENCE
    for thread in list(_ending):
        thread.join(max(0.0, until - time.monotonic()))
    if _ending:
        _log.warning("%d input pipelines still ran %.0f s after the program ended.", len(_ending), _PATIENCE)
