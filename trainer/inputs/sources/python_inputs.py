"""Inputs whose batches come from Python code: generators, iterables, torch DataLoaders, PyDatasets."""

import collections
import concurrent.futures
import contextlib
import itertools
import json
import logging
import multiprocessing
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from ....compat.side_table import SideTable
from ..given_data import GivenData, Reading, with_places
from ..outside_state import RecordedCalls
from ..position import Position, SampleOrder
from .feed import BatchForm
from .python_batches import PythonSource
from .source import Chunk

_log = logging.getLogger("unisono")

# Batches that were drawn from a generator to learn their shapes and not used: the next call starts with them.
_unread: SideTable[list[Any]] = SideTable(list)

_END = object()
ENDLESS = 2**62


class StreamSource(PythonSource):
    """Batches from an iterator, or from an object that can be iterated over repeatedly.

    Draws as many batches as an epoch has steps, and no more. An iterator is one stream over all epochs; an iterable
    starts again with every epoch, unless `steps_per_epoch` lets a pass last longer. `rewinds` is false for an
    iterator: then a resume is exact only if a new one yields the same batches. The first two batches are drawn at once,
    and kept for the first epoch.
    """

    def __init__(self, data: GivenData, how: Reading) -> None:
        stream, kind = data.x, data.kind
        self._stream, self.rewinds = stream, not hasattr(stream, "__next__")
        expected = _length(stream) if self.rewinds else None
        self.position = Position(data.steps, expected=expected, one_pass=not self.rewinds)
        self._calls = RecordedCalls(stream, how.named)
        self._start_pass()
        unread = self._take_unread()
        drawn = with_places(self._iterator, (f"batch {n} of the {kind}" for n in range(len(unread), 2)))
        super().__init__(kind, itertools.chain(unread, drawn), how.several_workers, how.sharing)

    def _start_pass(self, saved: Sequence[dict[str, str]] = ()) -> None:
        self._iterator: Iterator[Any] = self._calls.call(lambda: iter(self._stream), saved)
        self._unused = []

    def begin_epoch(self, epoch: int) -> None:
        """Start an epoch: an iterator continues, an iterable starts again when its pass is over."""
        super().close()
        if self.position.begin(epoch):
            self._start_pass()

    def _batches(self) -> Iterator[tuple[Any, BatchForm]]:
        epoch, first, most = self.position.epoch, self.position.step, self.position.given_steps
        steps = itertools.count(first) if most is None else range(first, most)
        places = (f"batch {step} of epoch {epoch}, from the {self._kind}" for step in steps)
        return self._check_items(with_places(self._rest(), places), first)

    def _rest(self) -> Iterator[Any]:
        while (item := self._next()) is not _END:
            yield item

    def _next(self) -> Any:
        return self._unused.pop(0) if self._unused else next(self._iterator, _END)

    def restore(self, state: dict[str, Any]) -> None:
        """Draw and drop the used batches. Exact if the stream yields the same batches as before."""
        super().close()
        taken = int(state["taken"])
        if self.rewinds:
            self._start_passes(int(state["passes"]), json.loads(state["calls"]))
        elif taken < self.position.taken:
            warnings.warn(
                f"The {self._kind} cannot go back from batch {self.position.taken} to batch {taken}; training continues "
                "with its next batch. Pass a tf.data.Dataset or a keras.utils.PyDataset for an exact resume.",
                stacklevel=2,
            )
        dropped = range(self.position.taken, taken)
        for number in dropped:
            if self._next() is _END:
                raise ValueError(
                    f"The {self._kind} has only {number} batches, but the run to resume had used {taken}."
                )
        self.position.restore({**state, "ended": False})
        if dropped:
            _log.warning("Resumed the %s by skipping %d batches.", self._kind, len(dropped))

    def _start_passes(self, passes: int, saved: list[dict[str, str]]) -> None:
        """Start the passes again, so that an order drawn from a random generator is the one of this pass."""
        if self.position.taken or self.position.passes or (saved and saved[0]):
            self._calls.forget()
        for number in range(len(self._calls), passes + 1):
            self._start_pass(saved)
            if number < passes:
                self._next()
        self.position.passes, self.position.taken = passes, 0

    def close(self) -> None:
        """Stop the thread. Batches that were drawn to be checked are kept for the next call with the same generator."""
        super().close()
        if not self.rewinds and self._unused:
            with contextlib.suppress(TypeError):  # of an iterator of Python's, which has no weak references
                _unread.of(self._stream)[:] = self._unused
        self._iterator = iter(())

    def _take_unread(self) -> list[Any]:
        with contextlib.suppress(TypeError):
            unread = _unread.of(self._stream)
            taken, unread[:] = [*unread], []
            return taken
        return []


def _length(stream: Any) -> int | None:
    try:
        return len(stream) or None
    except (TypeError, NotImplementedError):
        return None


class PyDatasetSource(PythonSource):
    """A `keras.utils.PyDataset`, with its workers, in order or shuffled.

    Owns the workers of the epoch. `on_epoch_begin` and `on_epoch_end` of the dataset are called around every
    epoch; after a resume they are first called for the past epochs, so that a dataset that changes itself is in
    the right state. The first two batches are made and checked when the source is made. With `shuffle` every pass has a
    new random order, a function of the seed.
    """

    resume_by = "index"

    def __init__(self, data: GivenData, how: Reading) -> None:
        dataset, shuffle = data.x, bool(how.shuffle)
        self._dataset, self._calls = dataset, RecordedCalls(dataset, how.named)
        self._make_order = lambda: _batch_order(dataset, shuffle, how.seed, data.steps)
        self.position: SampleOrder = self._make_order()
        numbers = range(min(2, self.position.samples))
        places = (f"batch {number} of the PyDataset" for number in numbers)
        first = with_places((dataset[number] for number in numbers), places)
        super().__init__("PyDataset", first, how.several_workers, how.sharing)
        self._inside = False

    def begin_epoch(self, epoch: int) -> None:
        """Start an epoch, after the hook of the dataset at the end of the last one."""
        self._end_epoch()
        order = self._make_order()
        if order.samples != self.position.samples:
            self.position = order
        super().begin_epoch(epoch)
        self._call_hook("on_epoch_begin")
        self._inside = True

    def _end_epoch(self) -> None:
        self.close()
        if self._inside:
            self._inside = False
            self._call_hook("on_epoch_end")

    def _call_hook(self, hook: str, saved: Sequence[dict[str, str]] = ()) -> None:
        self._calls.call(getattr(self._dataset, hook, lambda: None), saved)

    def take(self, max_steps: int) -> Chunk | None:
        """Return the next chunk; at the end of the epoch the dataset's hook is called."""
        chunk = super().take(max_steps)
        if chunk is None:
            self._end_epoch()
        return chunk

    def restore(self, state: dict[str, Any]) -> None:
        """Go to a position, which only costs the calls of `on_epoch_begin` and `on_epoch_end`."""
        self.close()
        saved = json.loads(state["calls"])
        for number in range(len(self._calls), len(saved)):
            self._call_hook("on_epoch_end" if number % 2 else "on_epoch_begin", saved)
        self._inside = len(saved) % 2 == 1
        self.position = self._make_order()
        super().restore(state)

    def _batches(self) -> Iterator[tuple[Any, BatchForm]]:
        order = self.position
        first, chosen = order.step, order.indices()
        part = range(order.taken, order.taken + order.count_left(2**31))
        numbers = list(part) if chosen is None else chosen[part.start : part.stop].tolist()
        ordered = enumerate(numbers, first)
        places = (f"item {number} of the PyDataset, batch {step} of the epoch" for step, number in ordered)
        with contextlib.closing(_items_of(self._dataset, numbers)) as items:
            yield from self._check_items(with_places(items, places), first)


def _batch_order(dataset: Any, shuffle: bool, seed: int, steps_per_epoch: int | None) -> SampleOrder:
    """Return the order of a dataset's batches, whose number may differ in every epoch."""
    try:
        count = dataset.num_batches
    except TypeError as error:  # of Python's `len`
        raise TypeError(
            f"`x`: {type(dataset).__name__}.__len__ must return a whole number of batches ({error})."
        ) from error
    if count is None and steps_per_epoch is None:
        raise ValueError(
            "steps_per_epoch (None) must be set for a PyDataset without end (its num_batches is None)."
        )
    if count is not None and count < 1:
        raise ValueError(f"The PyDataset has {count} batches; it must have at least one.")
    batches = ENDLESS if count is None else int(count)
    return SampleOrder(batches, 1, shuffle and count is not None, seed, steps_per_epoch)


def _items_of(dataset: Any, numbers: list[int]) -> Generator[Any, None, None]:
    """Yield the items with these numbers, in order, made by the dataset's workers at most `max_queue_size` ahead."""
    workers, processes = getattr(dataset, "workers", 1), getattr(dataset, "use_multiprocessing", False)
    if workers <= 1 and not (workers > 0 and processes):
        yield from (dataset[number] for number in numbers)
        return
    ahead = max(workers, int(getattr(dataset, "max_queue_size", 10)))
    if processes:
        # As in Keras: the children get the dataset with the fork, at the start of every epoch.
        context = multiprocessing.get_context("fork")
        pool: Any = concurrent.futures.ProcessPoolExecutor(
            workers, mp_context=context, initializer=_kept.append, initargs=(dataset,)
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


_kept: list[Any] = []  # in a child process


def _item_of_kept(number: int) -> Any:
    return _kept[-1][number]
