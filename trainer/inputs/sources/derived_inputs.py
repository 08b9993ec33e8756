"""Inputs derived from an input: its first batches, and the parts of a validation split."""

import collections
import itertools
import math
from typing import Any

import numpy as np
import tensorflow as tf

from ....distribute.arguments import number
from .. import input_checks
from ..batch import slice_samples
from ..convert import is_array, standard_arrays
from .make_source import DISTRIBUTED, FUNCTION, kind_of
from .python_batches import with_places


def first_batches(
    x: Any, y: Any, sample_weight: Any, count: int, batch_size: int | None, steps_per_epoch: int | None
) -> tuple[Any, Any, Any, int | None]:
    """Return `(x, y, sample_weight, batch_size)` of the first `count` batches, or an epoch's, for `overfit_batches`."""
    kind = kind_of(x)
    count = min(count, steps_per_epoch or count)
    if kind == "array":
        arrays = standard_arrays(x, y, sample_weight)
        samples = input_checks.same_samples(arrays)
        size = batch_size or (math.ceil(samples / steps_per_epoch) if steps_per_epoch else 32)
        return *_samples_of(arrays, 0, min(samples, count * size)), size
    input_checks.alone(kind, y, sample_weight, batch_size=batch_size)
    if kind == DISTRIBUTED:
        raise ValueError(
            f"`overfit_batches` ({count}) cannot be used with a {kind}, whose single batches are not accessible: pass "
            "the tf.data.Dataset from which it was made, or a function of tf.distribute.InputContext."
        )
    return _first_of(x, kind, count), None, None, None


def _first_of(x: Any, kind: str, count: int) -> Any:
    places = (f"batch {number} of the {kind}" for number in itertools.count())
    if kind == "Keras data adapter":
        x, kind = x.get_tf_dataset(), "tf.data.Dataset"
    if kind == "tf.data.Dataset":
        return x.take(count).cache()
    if kind == FUNCTION:

        def first(context: tf.distribute.InputContext) -> Any:
            dataset = x(context)
            parts = max(1, context.num_replicas_in_sync // context.num_input_pipelines)
            return dataset.take(count * parts).cache() if isinstance(dataset, tf.data.Dataset) else dataset

        return first
    if kind == "PyDataset":
        numbers = range(min(count, count if x.num_batches is None else x.num_batches))
        items = with_places((x[number] for number in numbers), places)
        return collections.deque((item,) if is_array(item) else item for item in items)  # a list is one array
    return collections.deque(itertools.islice(with_places(iter(x), places), count))


def split_for_validation(
    x: Any, y: Any = None, sample_weight: Any = None, *, validation_split: float
) -> tuple[tuple[Any, Any, Any], tuple[Any, Any, Any]]:
    """Split arrays into those for training and, at the end, for validation, before any shuffling. Arrays are views."""
    number("validation_split", validation_split, above=0, below=1)
    kind = kind_of(x)
    if kind != "array":
        raise ValueError(
            f"validation_split ({validation_split}) needs arrays, but x is a {kind}, whose length is not known in "
            "advance: pass validation_data."
        )
    arrays = standard_arrays(x, y, sample_weight)
    samples = input_checks.same_samples(arrays)
    cut = math.floor(samples * (1.0 - validation_split))
    if cut in (0, samples):
        raise ValueError(
            f"validation_split ({validation_split}) of {samples} samples leaves {cut} for training and {samples - cut} "
            "for validation: pass more samples or a different share."
        )
    return _samples_of(arrays, 0, cut), _samples_of(arrays, cut, samples)


def _samples_of(arrays: tuple[Any, ...], start: int, stop: int) -> tuple[Any, Any, Any]:
    """Return the samples from `start` to `stop` of `(x, y, sample_weight)`, as from `standard_arrays`."""

    def cut(leaf: Any) -> Any:
        return leaf[start:stop] if isinstance(leaf, np.ndarray) else slice_samples(leaf, start, stop)

    x, y, sample_weight = tf.nest.map_structure(cut, arrays)
    return x, y, sample_weight
