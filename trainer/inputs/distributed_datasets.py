"""Datasets that `tf.distribute` has parted over replicas: their batches are put together again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ...compat.datasets import original_dataset
from .calendar import Calendar
from .datasets import DatasetSource, length_of
from .readers import map_optional
from .rows import batch_spec, concat_rows


class DistributedSource(DatasetSource):
    """A `tf.distribute.DistributedDataset`: the rows of all replicas of this worker are one batch again.

    Args:
        dataset: made by `strategy.experimental_distribute_dataset` or `distribute_datasets_from_function`.
        steps_per_epoch: int or None; the steps of an epoch.
        strategy: the strategy that made it.
        per_worker: whether there is more than one worker.
    """

    _differs_by_replica = True
    _length_is_hidden = True

    def __init__(
        self, dataset: Any, steps_per_epoch: int | None, strategy: tf.distribute.Strategy, per_worker: bool
    ) -> None:
        self._dataset, self.per_worker = dataset, per_worker
        self._parts, self._counted, self._element_spec = 1, False, None
        self._know(original_dataset(dataset))
        self._saves = False
        length = length_of(dataset, steps_per_epoch)
        self.calendar = Calendar(steps_per_epoch, expected=None if per_worker else length)
        self._iterator = iter(dataset)
        self._joining, self.spec = _joining_reader_of(strategy, self._iterator)

    def _reader(self) -> Callable[[Any, Any], Any]:
        return self._joining

    def _signature(self) -> Any:
        return None


# One reader for each layout: the compiled function is kept by it.
_joining_readers: dict[Any, Any] = {}


def _joining_reader_of(strategy: tf.distribute.Strategy, iterator: Any) -> tuple[Any, Any]:
    """What draws from the iterator of a distributed dataset and joins the rows of all replicas, and a batch's spec."""

    def join(element: Any) -> Any:
        return concat_rows(list(strategy.experimental_local_results(element)))

    traced = tf.function(lambda it: join(it.get_next())).get_concrete_function(iterator)
    spec = batch_spec(traced.structured_outputs)

    def read(iterator: Any, i: Any) -> Any:
        return map_optional(join, iterator.get_next_as_optional(), spec)

    return _joining_readers.setdefault((strategy, str(spec)), read), spec
