"""`keras.utils.PyDataset`: batches that are had by their number, from its threads or processes."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import multiprocessing
from collections.abc import Callable, Generator, Iterator
from typing import Any

from .batches import PythonBatches, noted, noting_place
from .calendar import RowOrder
from .checks import ONE_REPLICA, Sharing
from .content import checksum, drawn_ahead, notes_random_numbers
from .feed import FedSource, Group
from .recorded_calls import RecordedCalls, saved_calls
from .source import Chunk

ENDLESS = 2**62


class PyDatasetSource(FedSource):
    """A `keras.utils.PyDataset`, with its workers, in the order of its numbers or shuffled.

    Owns the workers of the epoch. `on_epoch_begin` and `on_epoch_end` of the dataset are called around every
    epoch; after a resume they are first called for the epochs that are over, so that a dataset which changes
    itself has changed. The first two batches are looked at when it is made.

    Args:
        dataset: `keras.utils.PyDataset`.
        shuffle: whether the batches come in a new random order in every pass.
        seed: int; the order is a function of it.
        steps_per_epoch: int or None; batches of an epoch.
        steady: see `Grouping`.
        sharing: whether the arrays of a batch may have different rows.

    Raises:
        ValueError: it has no batches, or no end and no `steps_per_epoch`.
    """

    resume_by = "index"

    def __init__(
        self,
        dataset: Any,
        shuffle: bool | str,
        seed: int,
        steps_per_epoch: int | None,
        steady: bool,
        sharing: Sharing = ONE_REPLICA,
    ) -> None:
        self._dataset = dataset
        self._make_order = lambda: _batch_order(dataset, bool(shuffle), seed, steps_per_epoch)
        self._set_order(self._make_order())
        first = []
        with notes_random_numbers(dataset) as drawn_from:
            for number in range(min(2, self.calendar.rows)):
                with noting_place(f"batch {number} of the PyDataset"):
                    first.append(dataset[number])
        self._first_checksum = None if drawn_from else checksum(first)
        self.inexact = drawn_ahead("PyDataset", drawn_from)
        self._batches = PythonBatches(first, "PyDataset", steady, sharing=sharing)
        self.spec = self._layout = self._batches.spec
        self.usual_rows = self._batches.usual_rows
        self._inside = False
        self._calls = RecordedCalls(dataset)

    def _content(self) -> str | None:
        return self._first_checksum

    def _set_order(self, order: RowOrder) -> None:
        self.calendar: RowOrder = order
        self.rows = order.rows

    def begin_epoch(self, epoch: int) -> None:
        """Starts an epoch, after the dataset has been told that the last one is over."""
        self._end_epoch()
        order = self._make_order()
        if order.rows != self.rows:
            self._set_order(order)
        super().begin_epoch(epoch)
        self._start_epoch()

    def _start_epoch(self) -> None:
        self._tell("on_epoch_begin")
        self._inside = True

    def _end_epoch(self) -> None:
        self.close()
        if self._inside:
            self._inside = False
            self._tell("on_epoch_end")

    def _tell(self, hook: str, saved: list[dict[str, str]] | None = None) -> None:
        self._calls.repeat(len(self._calls), getattr(self._dataset, hook, lambda: None), saved or [])

    def take(self, max_steps: int) -> Chunk | None:
        """The next chunk; at the end of the epoch the dataset is told."""
        chunk = super().take(max_steps)
        if chunk is None:
            self._end_epoch()
        return chunk

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a position at no cost but the calls of `on_epoch_begin` and `on_epoch_end`."""
        self.close()
        saved = saved_calls(state)
        count = 2 * int(state["epoch"]) + (int(state["step"]) > 0) if saved is None else len(saved)
        for number in range(len(self._calls), count):
            self._tell("on_epoch_end" if number % 2 else "on_epoch_begin", saved)
        self._inside = count % 2 == 1
        self._set_order(self._make_order())
        super().restore(state)

    def state(self) -> dict[str, Any]:
        """The position, with the calls of its hooks."""
        return {**super().state(), "calls": self._calls.state()}

    def _groups(self) -> Callable[[Callable[[], bool]], Iterator[Group]]:
        return functools.partial(self._groups_from, self.calendar.copy())

    def _groups_from(self, order: RowOrder, waiting: Callable[[], bool]) -> Iterator[Group]:
        first, numbers = order.step, []
        while (run := order.next_run(2**31)) is not None:
            order.advance(run.batches)
            chosen, last = order.indices(run.a_pass), run.first_row + run.batches
            numbers += range(run.first_row, last) if chosen is None else chosen[run.first_row : last].tolist()
        ordered = enumerate(numbers, first)
        places = (f"item {number} of the PyDataset, batch {step} of the epoch" for step, number in ordered)
        with contextlib.closing(_items(self._dataset, numbers)) as items:
            yield from self._batches.groups(noted(items, places), first, waiting)


def _batch_order(dataset: Any, shuffle: bool, seed: int, steps_per_epoch: int | None) -> RowOrder:
    """The order of a dataset's batches, which may be others in every epoch."""
    try:
        count = dataset.num_batches
    except TypeError as error:  # of Python's `len`
        raise TypeError(
            f"`x`: {type(dataset).__name__}.__len__ must return a whole number of batches ({error})."
        ) from error
    if count is None and steps_per_epoch is None:
        raise ValueError(
            "steps_per_epoch (None) must be given for a PyDataset without end (its num_batches is None)."
        )
    if count is not None and count < 1:
        raise ValueError(f"The PyDataset has {count} batches; it must have at least one.")
    rows = ENDLESS if count is None else int(count)
    return RowOrder(rows, 1, shuffle and count is not None, seed, steps_per_epoch)


def _items(dataset: Any, numbers: list[int]) -> Generator[Any, None, None]:
    """The items with these numbers, made by as many threads or processes as the dataset asks for."""
    workers, processes = getattr(dataset, "workers", 1), getattr(dataset, "use_multiprocessing", False)
    if workers > 1 or (workers > 0 and processes):
        return _made_ahead(dataset, numbers, workers, processes)
    return (dataset[number] for number in numbers)


def _made_ahead(
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
