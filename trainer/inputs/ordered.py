"""Inputs of which any batch can be had by its number: big arrays and `keras.utils.PyDataset`."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import copy
import multiprocessing
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from .arrays import RowOrder
from .batches import BatchCheck, common_spec, host_rows, standard_batch
from .convert import cast_floats
from .feed import GROUP_BYTES, Feed, Group, Grouping
from .rows import gather_rows, slice_rows, spec_without_rows
from .source import Chunk

ENDLESS = 2**62


class OrderedSource:
    """Batches in a known order, made by a thread. Owns the thread of the epoch; `order` is the position."""

    per_worker = False
    resume_by = "index"
    batch_rows: int | None = None
    spec: Any

    def __init__(self, order: RowOrder) -> None:
        self._order = order
        self._feed: Feed | None = None

    @property
    def steps_per_epoch(self) -> int | None:
        """Batches of an epoch."""
        return self._order.steps_per_epoch

    def _groups(self, order: RowOrder, waiting: Callable[[], bool]) -> Iterator[Group]:
        """The groups from the position of `order`, which is this call's own, to the end of its epoch."""
        raise AssertionError("OrderedSource is a base class.")

    def begin_epoch(self, epoch: int) -> None:
        """Starts the pass over the data that belongs to `epoch`."""
        self.close()
        self._order.begin(epoch)

    def take(self, max_steps: int) -> Chunk | None:
        """The next chunk: at most `max_steps` batches of equal rows.

        Raises:
            The error of the user's own code, with the number of the batch as a note.
        """
        if self._feed is None:
            order = copy.copy(self._order)
            self._feed = Feed(lambda waiting: self._groups(order, waiting))
        chunk = self._feed.take(max_steps, self.spec)
        if chunk is None:
            self._order.warn_if_short()
        else:
            self._order.step += chunk.steps
        return chunk

    def drawn(self, steps: int) -> None:
        """Every step of a chunk is there."""

    def state(self) -> dict[str, Any]:
        """The position after the last chunk."""
        return self._order.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a position, at no cost."""
        self.close()
        self._order.restore(state)

    def close(self) -> None:
        """Stops the thread."""
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()


class StreamedArrays(OrderedSource):
    """Arrays that are too large to be copied, or lie in files: only the rows of the next batches are read.

    Holds a few groups of at most 16 MiB (or of one batch) at a time.
    """

    def __init__(self, arrays: Any, order: RowOrder) -> None:
        """Keeps the arrays as they are.

        Args:
            arrays: nest of NumPy arrays and tensors, as the tuple `(x,)`, `(x, y)` or `(x, y,
                sample_weight)`.
            order: the order of their rows.
        """
        super().__init__(order)
        self._arrays = arrays
        self.batch_rows = order.batch_rows
        row = self._read(0, 1, None)
        self.spec = tf.nest.map_structure(lambda v: None if v is None else spec_without_rows(v), row)
        size = sum(v.dtype.size * int(np.prod(v.shape)) for v in tf.nest.flatten(row, True) if v is not None)
        self._most_rows = max(1, GROUP_BYTES // max(1, size))

    def _read(self, start: int, count: int, rows: np.ndarray | None) -> Any:
        chosen = None if rows is None else rows[start : start + count]

        def read(leaf: Any) -> Any:
            if leaf is None:
                return None
            if isinstance(leaf, np.ndarray):
                return tf.constant(
                    cast_floats(leaf[start : start + count] if chosen is None else leaf[chosen])
                )
            if chosen is None:
                return cast_floats(slice_rows(leaf, start, start + count))
            return cast_floats(gather_rows(leaf, tf.constant(chosen)))

        with tf.device("CPU:0"):
            return tf.nest.map_structure(read, self._arrays)

    def _groups(self, order: RowOrder, waiting: Callable[[], bool]) -> Iterator[Group]:
        while (run := order.next_run(1024, self._most_rows)) is not None:
            a_pass, start, steps, rows = run
            splits = np.arange(steps + 1, dtype=np.int64) * rows
            yield Group(self._read(start, steps * rows, order.indices(a_pass)), splits, rows)


class PyDatasetSource(OrderedSource):
    """A `keras.utils.PyDataset`, with its workers, in the order of its numbers or shuffled.

    Owns the workers of the epoch. `on_epoch_begin` and `on_epoch_end` of the dataset are called around every
    epoch; after a resume they are first called for the epochs that are over, so that a dataset which changes
    itself has changed.
    """

    def __init__(
        self,
        dataset: Any,
        shuffle: bool | str,
        seed: int,
        steps_per_epoch: int | None,
        steady: bool,
    ) -> None:
        """Looks at the first two batches.

        Args:
            dataset: `keras.utils.PyDataset`.
            shuffle: whether the batches come in a new random order in every pass.
            seed: int; the order is a function of it.
            steps_per_epoch: int or None; batches of an epoch.
            steady: see `Grouping`.

        Raises:
            ValueError: if it has no batches, or no end and no `steps_per_epoch`.
        """
        self._dataset = dataset
        self._shuffle = bool(shuffle)
        self._seed = seed
        self._wanted = steps_per_epoch
        super().__init__(self._make_order())
        first = [self._batch(number) for number in range(min(2, self._order.batches))]
        self.spec = common_spec(first, "PyDataset")
        self._check = BatchCheck(self.spec, "PyDataset")
        self._grouping = Grouping(steady)
        self._inside = False
        self._epochs_over = 0

    def _make_order(self) -> RowOrder:
        count = self._dataset.num_batches
        if count is None and self._wanted is None:
            raise ValueError(
                "steps_per_epoch (None) must be given for a PyDataset without end (its num_batches is None)."
            )
        if count is not None and count < 1:
            raise ValueError(f"The PyDataset has {count} batches; it must have at least one.")
        shuffle = self._shuffle and count is not None
        return RowOrder(ENDLESS if count is None else int(count), 1, shuffle, self._seed, self._wanted)

    def _batch(self, number: int) -> Any:
        with noted(f"batch {number} of the PyDataset"):
            item = self._dataset[number]
        return standard_batch(tuple(item) if isinstance(item, list) else item, "PyDataset", number)

    def begin_epoch(self, epoch: int) -> None:
        """Starts an epoch, after the dataset has been told that the last one is over."""
        self.close()
        self._end_epoch()
        order = self._make_order()
        if order.rows != self._order.rows:
            self._order = order
        self._order.begin(epoch)
        self._start_epoch()

    def _start_epoch(self) -> None:
        getattr(self._dataset, "on_epoch_begin", lambda: None)()
        self._inside = True

    def _end_epoch(self) -> None:
        if self._inside:
            self._inside = False
            self._epochs_over += 1
            getattr(self._dataset, "on_epoch_end", lambda: None)()

    def take(self, max_steps: int) -> Chunk | None:
        """The next chunk; at the end of the epoch the dataset is told."""
        chunk = super().take(max_steps)
        if chunk is None:
            self.close()
            self._end_epoch()
        return chunk

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a position at no cost but the calls of `on_epoch_end`."""
        self.close()
        self._inside = False
        while self._epochs_over < int(state["epoch"]):
            self._start_epoch()
            self._end_epoch()
        self._order = self._make_order()
        self._order.restore(state)
        if self._order.step:
            self._start_epoch()

    def _groups(self, order: RowOrder, waiting: Callable[[], bool]) -> Iterator[Group]:
        numbers: list[int] = []
        steps: list[int] = []
        while True:
            step = order.step
            run = order.next_run(2**31)
            if run is None:
                break
            a_pass, start, count, _ = run
            rows = order.indices(a_pass)
            numbers += range(start, start + count) if rows is None else rows[start : start + count].tolist()
            steps += range(step, step + count)
        with contextlib.closing(self._items(numbers)) as items:
            yield from self._grouping.groups(self._checked(items, numbers, steps), waiting)

    def _checked(self, items: Any, numbers: list[int], steps: list[int]) -> Iterator[Any]:
        for number, step in zip(numbers, steps):
            with noted(f"item {number} of the PyDataset, batch {step} of the epoch"):
                item = next(items)
            item = tuple(item) if isinstance(item, list) else item
            batch = standard_batch(item, "PyDataset", step)
            yield batch, self._check.layout(batch, step), host_rows(batch)

    def _items(self, numbers: list[int]) -> Generator[Any, None, None]:
        workers = getattr(self._dataset, "workers", 1)
        processes = getattr(self._dataset, "use_multiprocessing", False)
        if workers > 1 or (workers > 0 and processes):
            return _ordered_results(self._dataset, numbers, workers, processes)
        return _one_by_one(self._dataset, numbers)


def _one_by_one(dataset: Any, numbers: list[int]) -> Generator[Any, None, None]:
    for number in numbers:
        yield dataset[number]


def _ordered_results(
    dataset: Any, numbers: list[int], workers: int, processes: bool
) -> Generator[Any, None, None]:
    """Items made by threads or processes, in the order of their numbers, at most `max_queue_size` ahead."""
    ahead = max(workers, int(getattr(dataset, "max_queue_size", 10)))
    if processes:
        # As Keras does: the dataset goes to the children with the fork, at the start of every epoch.
        context = multiprocessing.get_context("fork")
        pool: Any = concurrent.futures.ProcessPoolExecutor(
            workers, mp_context=context, initializer=_keep_dataset, initargs=(dataset,)
        )
        get: Callable[[int], Any] = _item_of_kept
    else:
        pool = concurrent.futures.ThreadPoolExecutor(workers, thread_name_prefix="unisono-pydataset")
        get = dataset.__getitem__
    waiting: collections.deque[Any] = collections.deque()
    try:
        for number in numbers:
            waiting.append(pool.submit(get, number))
            if len(waiting) >= ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


_kept: list[Any] = []


def _keep_dataset(dataset: Any) -> None:
    _kept[:] = [dataset]


def _item_of_kept(number: int) -> Any:
    return _kept[0][number]


@contextlib.contextmanager
def noted(place: str) -> Iterator[None]:
    """Lets an error of the user's code pass as it is, with a note that says where in the input it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"Raised by the input: {place} (counted from 0).")
        raise
