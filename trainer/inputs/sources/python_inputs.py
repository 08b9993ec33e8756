"""Inputs whose batches come from Python code: generators, iterables, torch DataLoaders, PyDatasets."""

from __future__ import annotations

import contextlib
import itertools
import logging
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

from ..checks import ONE_REPLICA, Sharing
from ..outside_state import RecordedCalls, saved_calls
from ..position import Position, SampleOrder
from .dataset_items import items_of
from .feed import Layout
from .python_batches import PythonSource, with_places
from .source import Chunk

_log = logging.getLogger("unisono")

# Batches that were drawn from a generator to learn their shapes and not used: the next call starts with them.
_unread: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()

_END = object()
ENDLESS = 2**62


class StreamSource(PythonSource):
    """Batches from an iterator, or from an object that can be iterated over repeatedly.

    Draws as many batches as an epoch has steps, and no more. An iterator is one stream over all epochs; an iterable
    starts again with every epoch, unless `steps_per_epoch` lets a pass last longer. `rewinds` is false for an
    iterator: then a resume is exact only if a new one gives the same batches.

    Args:
        stream: iterator or iterable of batches; the first two are drawn at once, and kept for the first epoch.
        kind: its name in messages.
        steps_per_epoch: int or None; batches of an epoch; None: until it ends.
        steady: see `FedSource`.
        sharing: whether the arrays of a batch may have different numbers of samples.

    Raises:
        ValueError: it has no batch, or invalid ones.
    """

    def __init__(
        self,
        stream: Any,
        kind: str,
        steps_per_epoch: int | None,
        steady: bool,
        sharing: Sharing = ONE_REPLICA,
    ) -> None:
        self._stream, self._most_steps = stream, steps_per_epoch
        self.rewinds = not hasattr(stream, "__next__")
        expected = _length(stream) if self.rewinds else None
        self.position = Position(steps_per_epoch, expected=expected, one_pass=not self.rewinds)
        calls = RecordedCalls(stream)
        self._iterator: Iterator[Any] = calls.call(lambda: iter(stream))
        unread = _unread.pop(stream, []) if _can_be_key(stream) else []
        drawn = with_places(self._iterator, (f"batch {n} of the {kind}" for n in range(len(unread), 2)))
        super().__init__(stream, calls, kind, itertools.chain(unread, drawn), steady, sharing)

    def _start_pass(self) -> None:
        self._iterator, self._unused = self._calls.call(lambda: iter(self._stream)), []

    def begin_epoch(self, epoch: int) -> None:
        """Starts an epoch: an iterator continues, an iterable starts again when its pass is over."""
        super().close()
        if self.position.begin(epoch):
            self._start_pass()

    def _batches(self) -> Iterator[tuple[Any, Layout]]:
        epoch, first = self.position.epoch, self.position.step
        steps = itertools.count(first) if self._most_steps is None else range(first, self._most_steps)
        places = (f"batch {step} of epoch {epoch}, from the {self._kind}" for step in steps)
        return self._checked(with_places(self._rest(), places), first)

    def _rest(self) -> Iterator[Any]:
        while (item := self._next()) is not _END:
            yield item

    def _next(self) -> Any:
        return self._unused.pop(0) if self._unused else next(self._iterator, _END)

    def restore(self, state: dict[str, Any]) -> None:
        """Draws and drops the used batches. Exact if the stream gives the same batches as before.

        Raises:
            ValueError: it ends before.
        """
        super().close()
        taken = int(state["taken"])
        if self.rewinds:
            self._start_passes(int(state["passes"]), saved_calls(state) or [])
        elif taken < self.position.taken:
            warnings.warn(
                f"The {self._kind} cannot go back from batch {self.position.taken} to batch {taken}; training goes on "
                "with its next batch. Give a tf.data.Dataset or a keras.utils.PyDataset for an exact resume.",
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
        """Starts the passes again, so that an order drawn from a random generator is the one of this pass."""
        again = self.position.taken or self.position.passes or (saved and saved[0])
        if again:
            self._calls.forget()
        for number in range(len(self._calls), passes + 1):
            self._iterator, self._unused = self._calls.repeat(number, lambda: iter(self._stream), saved), []
            if number < passes:
                self._next()
        self.position.passes, self.position.taken = passes, 0

    def close(self) -> None:
        """Stops the thread. Batches that were drawn to be checked are kept for the next call with the same generator."""
        super().close()
        if not self.rewinds and self._unused and _can_be_key(self._stream):
            _unread[self._stream] = self._unused
        self._iterator = iter(())


def _can_be_key(stream: Any) -> bool:
    """Whether a weak dictionary can hold it."""
    try:
        weakref.ref(stream)
        hash(stream)
    except TypeError:
        return False
    return True


def _length(stream: Any) -> int | None:
    try:
        return len(stream) or None
    except (TypeError, NotImplementedError):
        return None


class PyDatasetSource(PythonSource):
    """A `keras.utils.PyDataset`, with its workers, in order or shuffled.

    Owns the workers of the epoch. `on_epoch_begin` and `on_epoch_end` of the dataset are called around every
    epoch; after a resume they are first called for the past epochs, so that a dataset that changes itself is in
    the right state. The first two batches are made and checked when the source is made.

    Args:
        dataset: `keras.utils.PyDataset`.
        shuffle: whether the batches come in a new random order in every pass.
        seed: int; the order is a function of it.
        steps_per_epoch: int or None; batches of an epoch.
        steady: see `FedSource`.
        sharing: whether the arrays of a batch may have different numbers of samples.

    Raises:
        ValueError: it has no batches, or it is infinite and `steps_per_epoch` is None.
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
        numbers = range(min(2, self.position.samples))
        places = (f"batch {number} of the PyDataset" for number in numbers)
        first = with_places((dataset[number] for number in numbers), places)
        super().__init__(dataset, RecordedCalls(dataset), "PyDataset", first, steady, sharing)
        self._inside = False

    def _set_order(self, order: SampleOrder) -> None:
        self.position: SampleOrder = order
        self.samples = order.samples

    def begin_epoch(self, epoch: int) -> None:
        """Starts an epoch, after the hook of the dataset at the end of the last one."""
        self._end_epoch()
        order = self._make_order()
        if order.samples != self.samples:
            self._set_order(order)
        super().begin_epoch(epoch)
        self._call_hook("on_epoch_begin")
        self._inside = True

    def _end_epoch(self) -> None:
        self.close()
        if self._inside:
            self._inside = False
            self._call_hook("on_epoch_end")

    def _call_hook(self, hook: str, saved: list[dict[str, str]] | None = None) -> None:
        self._calls.repeat(len(self._calls), getattr(self._dataset, hook, lambda: None), saved or [])

    def take(self, max_steps: int) -> Chunk | None:
        """The next chunk; at the end of the epoch the dataset's hook is called."""
        chunk = super().take(max_steps)
        if chunk is None:
            self._end_epoch()
        return chunk

    def restore(self, state: dict[str, Any]) -> None:
        """Goes to a position; this only costs the calls of `on_epoch_begin` and `on_epoch_end`."""
        self.close()
        saved = saved_calls(state)
        count = 2 * int(state["epoch"]) + (int(state["step"]) > 0) if saved is None else len(saved)
        for number in range(len(self._calls), count):
            self._call_hook("on_epoch_end" if number % 2 else "on_epoch_begin", saved)
        self._inside = count % 2 == 1
        self._set_order(self._make_order())
        super().restore(state)

    def _batches(self) -> Iterator[tuple[Any, Layout]]:
        order = self.position.copy()
        first, numbers = order.step, []
        while (run := order.next_run(2**31)) is not None:
            order.advance(run.batches)
            chosen, last = order.indices(run.a_pass), run.first + run.batches
            numbers += range(run.first, last) if chosen is None else chosen[run.first : last].tolist()
        ordered = enumerate(numbers, first)
        places = (f"item {number} of the PyDataset, batch {step} of the epoch" for step, number in ordered)
        with contextlib.closing(items_of(self._dataset, numbers)) as items:
            yield from self._checked(with_places(items, places), first)


def _batch_order(dataset: Any, shuffle: bool, seed: int, steps_per_epoch: int | None) -> SampleOrder:
    """The order of a dataset's batches, whose number may differ in every epoch."""
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
    batches = ENDLESS if count is None else int(count)
    return SampleOrder(batches, 1, shuffle and count is not None, seed, steps_per_epoch)
