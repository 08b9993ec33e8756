"""Inputs derived from an input: its first batches, the parts of a validation split, a copy to read without side effects."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from ....compat.tensorflow_private.datasets import copied_dataset
from ....distribute.arguments import number
from .. import checks
from ..batch import slice_samples
from ..convert import is_array, standard_arrays
from .make_source import DISTRIBUTED, FUNCTION, kind_of
from .python_batches import with_places


class Input(NamedTuple):
    """The arguments of `make_source`; `steps_per_epoch` is no longer needed."""

    x: Any
    y: Any
    sample_weight: Any
    batch_size: int | None


def first_batches(
    x: Any, y: Any, sample_weight: Any, count: int, batch_size: int | None, steps_per_epoch: int | None
) -> Input:
    """For `overfit_batches`: the first `count` batches, or those of an epoch if it has fewer, in the order of the data.

    Arrays are sliced. Batches of a dataset are drawn once, in the first epoch, and kept in memory; batches of Python code
    are drawn here.

    Args:
        x: any input of `fit` except a distributed dataset.
        y: targets, for arrays.
        sample_weight: weights of the samples, for arrays.
        count: int; batches.
        batch_size: as `make_source` takes it.
        steps_per_epoch: the batches of an epoch, as the user gave them.

    Raises:
        ValueError: `x` is a distributed dataset.
    """
    kind = kind_of(x)
    count = min(count, steps_per_epoch or count)
    if kind == "array":
        arrays = standard_arrays(x, y, sample_weight)
        samples = checks.same_samples(arrays)
        size = batch_size or (math.ceil(samples / steps_per_epoch) if steps_per_epoch else 32)
        return Input(*_samples_of(arrays, 0, min(samples, count * size)), size)
    checks.alone(kind, y, sample_weight, batch_size=batch_size)
    if kind == DISTRIBUTED:
        raise ValueError(
            f"`overfit_batches` ({count}) cannot be used with a {kind}, whose single batches are not accessible: give the "
            "tf.data.Dataset that it was made of, or a function of tf.distribute.InputContext."
        )
    return Input(_first_of(x, kind, count), None, None, None)


def _first_of(x: Any, kind: str, count: int) -> Any:
    places = (f"batch {number} of the {kind}" for number in itertools.count())
    if kind == "Keras data adapter":
        x, kind = x.get_tf_dataset(), "tf.data.Dataset"
    if kind == "tf.data.Dataset":
        return x.take(count).cache()
    if kind == FUNCTION:
        return _first_of_function(x, count)
    if kind == "PyDataset":
        numbers = range(min(count, count if x.num_batches is None else x.num_batches))
        items = with_places((x[number] for number in numbers), places)
        return KeptBatches((item,) if is_array(item) else item for item in items)
    return KeptBatches(itertools.islice(with_places(iter(x), places), count))


class KeptBatches:
    """Batches in memory, repeated in every epoch."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = list(batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def _first_of_function(function: Any, count: int) -> Callable[[tf.distribute.InputContext], Any]:
    def first(context: tf.distribute.InputContext) -> Any:
        dataset = function(context)
        parts = max(1, context.num_replicas_in_sync // context.num_input_pipelines)
        return dataset.take(count * parts).cache() if isinstance(dataset, tf.data.Dataset) else dataset

    return first


def split_for_validation(
    x: Any, y: Any = None, sample_weight: Any = None, *, validation_split: float
) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Splits arrays, before any shuffling: the last samples are for validation, as in Keras.

    Args:
        x: arrays.
        y: arrays or None.
        sample_weight: arrays or None.
        validation_split: between 0 and 1; the part of the samples, at the end, that is for validation.

    Returns:
        `(x, y, sample_weight)` for training and for validation. NumPy arrays are views: memory-mapped ones stay in files.

    Raises:
        ValueError, TypeError: x is not an array, the share is invalid, or one of the two parts would have no sample.
    """
    number("validation_split", validation_split, above=0, below=1)
    kind = kind_of(x)
    if kind != "array":
        raise ValueError(
            f"validation_split ({validation_split}) needs arrays, but x is a {kind}, whose length is not known in "
            "advance; give validation_data."
        )
    arrays = standard_arrays(x, y, sample_weight)
    samples = checks.same_samples(arrays)
    cut = math.floor(samples * (1.0 - validation_split))
    if cut in (0, samples):
        raise ValueError(
            f"validation_split ({validation_split}) of {samples} samples leaves {cut} for training and {samples - cut} "
            "for validation; give more samples or another share."
        )
    return _samples_of(arrays, 0, cut), _samples_of(arrays, cut, samples)


def _samples_of(arrays: tuple[Any, ...], start: int, stop: int) -> tuple[Any, Any, Any]:
    """The samples from `start` to `stop` of `(x, y, sample_weight)`, as from `standard_arrays`."""

    def cut(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, np.ndarray):
            return None if leaf is None else leaf[start:stop]
        return slice_samples(leaf, start, stop)

    x, y, sample_weight = tf.nest.map_structure(cut, arrays)
    return x, y, sample_weight


def copied_input(x: Any, asked_by: str) -> Any:
    """`x`, or a copy, from which batches can be drawn without changing the state of `x`.

    The caller restores random generators from which `x` draws.

    Args:
        x: any input that can be read again.
        asked_by: the feature that needs it, for the message.

    Raises:
        ValueError: its batches can be drawn only once.
    """
    kind = kind_of(x)
    if kind in ("generator", DISTRIBUTED):
        raise ValueError(
            f"{asked_by} needs an input that can be read without side effects, and reading a {kind} would consume its "
            "batches: give arrays, a keras.utils.PyDataset, or a tf.data.Dataset."
        )
    if kind in ("Keras data adapter", "tf.data.Dataset"):
        return copied_dataset(x.get_tf_dataset() if kind == "Keras data adapter" else x)
    return _Items(x) if kind == "PyDataset" else x


class _Items(keras.utils.PyDataset):
    """The items of a PyDataset, without its hooks for the begin and end of epochs."""

    def __init__(self, dataset: Any) -> None:
        names = ("workers", "use_multiprocessing", "max_queue_size")
        super().__init__(**{name: getattr(dataset, name) for name in names if hasattr(dataset, name)})
        self._dataset = dataset

    @property
    def num_batches(self) -> int | None:
        """The dataset's own property."""
        return self._dataset.num_batches

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, number: int) -> Any:
        return self._dataset[number]
