"""`overfit_batches`: an input of the first batches alone, which are the same in every epoch."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from . import checks
from .batches import noted
from .convert import is_array, standard_arrays
from .make_source import kind_of
from .split import rows_of


class Input(NamedTuple):
    """What `make_source` is given; `steps_per_epoch` is no longer needed."""

    x: Any
    y: Any
    sample_weight: Any
    batch_size: int | None


class KeptBatches:
    """Batches in memory, given again in every epoch."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = list(batches)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def first_batches(
    x: Any, y: Any, sample_weight: Any, count: int, batch_size: int | None, steps_per_epoch: int | None
) -> Input:
    """An input of the first `count` batches, fewer where an epoch has fewer, in the order of the data.

    Arrays are cut. Of a dataset the batches are drawn once, in the first epoch, and kept in memory; of all that gives
    batches by calling Python they are drawn here.

    Args:
        x: any input of `fit` but a distributed dataset.
        y: targets, for arrays.
        sample_weight: weights of the rows, for arrays.
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
        rows = checks.same_rows(arrays)
        size = batch_size or (math.ceil(rows / steps_per_epoch) if steps_per_epoch else 32)
        return Input(*rows_of(arrays, 0, min(rows, count * size)), size)
    checks.alone(kind, y, sample_weight, batch_size=batch_size)
    if kind == "tf.distribute.DistributedDataset":
        raise ValueError(
            f"`overfit_batches` ({count}) cannot be used with a {kind}, which is not known by its batches: give the "
            "tf.data.Dataset that it was made of, or a function of tf.distribute.InputContext."
        )
    return Input(_first_of(x, kind, count), None, None, None)


def _first_of(x: Any, kind: str, count: int) -> Any:
    places = (f"batch {number} of the {kind}" for number in itertools.count())
    if kind == "Keras data adapter":
        return x.get_tf_dataset().take(count).cache()
    if kind == "tf.data.Dataset":
        return x.take(count).cache()
    if kind == "function of tf.distribute.InputContext":
        return _first_of_function(x, count)
    if kind == "PyDataset":
        numbers = range(min(count, count if x.num_batches is None else x.num_batches))
        items = (x[number] for number in numbers)
        return KeptBatches((item,) if is_array(item) else item for item in noted(items, places))
    return KeptBatches(itertools.islice(noted(iter(x), places), count))


def _first_of_function(function: Any, count: int) -> Callable[[tf.distribute.InputContext], Any]:
    def first(context: tf.distribute.InputContext) -> Any:
        dataset = function(context)
        parts = max(1, context.num_replicas_in_sync // context.num_input_pipelines)
        return dataset.take(count * parts).cache() if isinstance(dataset, tf.data.Dataset) else dataset

    return first
