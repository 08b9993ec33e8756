"""Inputs that give one batch after the other and nothing else: generators, iterators, iterables, torch DataLoaders."""

from __future__ import annotations

import itertools
import logging
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from .batches import PythonBatches, noting_place
from .calendar import Calendar
from .checks import ONE_REPLICA, Sharing
from .content import checksum, drawn_ahead, notes_random_numbers
from .feed import FedSource, Group
from .recorded_calls import RecordedCalls, saved_calls

_log = logging.getLogger("unisono")

# Batches that were drawn from a generator to learn their shapes and not used: the next call starts with them.
_unread: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()

_END = object()


class StreamSource(FedSource):
    """Batches from an iterator, or from anything that can be iterated over again and again.

    Draws as many batches as an epoch has steps, and no more. An iterator is one stream over all epochs; an iterable
    starts again with every epoch, unless `steps_per_epoch` lets a pass last longer. `rewinds` is false for an
    iterator: then a resume is exact only if a new one gives the same batches.

    Args:
        stream: iterator or iterable of batches; the first two are drawn at once, and kept for the first epoch.
        kind: its name in messages.
        steps_per_epoch: int or None; batches of an epoch; None: until it ends.
        steady: see `Grouping`.
        sharing: whether the arrays of a batch may have different rows.

    Raises:
        ValueError: it has no batch, or batches that are none.
    """

    def __init__(
        self,
        stream: Any,
        kind: str,
        steps_per_epoch: int | None,
        steady: bool,
        sharing: Sharing = ONE_REPLICA,
    ) -> None:
        self._stream, self._kind = stream, kind
        self.rewinds = not hasattr(stream, "__next__")
        expected = _length(stream) if self.rewinds else None
        self.calendar = Calendar(steps_per_epoch, expected=expected, one_pass=not self.rewinds)
        self._most_steps = steps_per_epoch
        self._passes = RecordedCalls(stream)
        self._iterator: Iterator[Any] = self._passes.call(lambda: iter(stream))
        self._first = list(_unread.pop(stream, ())) if _can_be_key(stream) else []
        with notes_random_numbers(stream) as drawn_from:
            while len(self._first) < 2:
                with noting_place(f"batch {len(self._first)} of the {kind}"):
                    item = next(self._iterator, _END)
                if item is _END:
                    break
                self._first.append(item)
        if not self._first:
            raise ValueError(f"The {kind} gave no batch; it is empty or has been used up, make a new one.")
        self._batches = PythonBatches(self._first, kind, steady, self.rewinds, sharing)
        self.spec = self._layout = self._batches.spec
        self.usual_rows = self._batches.usual_rows
        self.inexact = drawn_ahead(kind, drawn_from)
        # An iterator may come from an earlier call, and go on where that has ended.
        self._first_checksum = checksum(self._first) if self.rewinds and not drawn_from else None

    def _content(self) -> str | None:
        return self._first_checksum

    def _start_pass(self) -> None:
        self._iterator, self._first = self._passes.call(lambda: iter(self._stream)), []

    def begin_epoch(self, epoch: int) -> None:
        """Starts an epoch: an iterator goes on where it is, an iterable starts again when its pass is over."""
        self._stop()
        if self.calendar.begin(epoch):
            self._start_pass()

    def _groups(self) -> Callable[[Callable[[], bool]], Iterator[Group]]:
        first = self.calendar.step
        items = self._items(self.calendar.epoch, first)
        return lambda waiting: self._batches.groups(items, first, waiting)

    def _items(self, epoch: int, first: int) -> Iterator[Any]:
        for step in itertools.count(first) if self._most_steps is None else range(first, self._most_steps):
            with noting_place(f"batch {step} of epoch {epoch}, from the {self._kind}"):
                item = self._next()
            if item is _END:
                return
            yield item

    def _next(self) -> Any:
        return self._first.pop(0) if self._first else next(self._iterator, _END)

    def restore(self, state: dict[str, Any]) -> None:
        """Draws and drops the batches that were used. Right if the stream gives the same batches as it did then.

        Raises:
            ValueError: if it ends before.
        """
        self._stop()
        taken = int(state["taken"])
        if self.rewinds:
            self._start_passes(int(state["passes"]), saved_calls(state) or [])
        elif taken < self.calendar.taken:
            warnings.warn(
                f"The {self._kind} cannot go back from batch {self.calendar.taken} to batch {taken}; training goes on "
                "with its next batch. Give a tf.data.Dataset or a keras.utils.PyDataset for an exact resume.",
                stacklevel=2,
            )
        dropped = range(self.calendar.taken, taken)
        for number in dropped:
            if self._next() is _END:
                raise ValueError(
                    f"The {self._kind} has only {number} batches, but the run to resume had used {taken}."
                )
        self.calendar.restore({**state, "ended": False})
        if dropped:
            _log.warning("Resumed the %s by drawing and dropping %d batches.", self._kind, len(dropped))

    def _start_passes(self, passes: int, saved: list[dict[str, str]]) -> None:
        """Starts the passes again, so that an order drawn from a random generator is the one of this pass."""
        again = self.calendar.taken or self.calendar.passes or (saved and saved[0])
        if again:
            self._passes.forget()
        for number in range(len(self._passes), passes + 1):
            self._iterator, self._first = self._passes.repeat(number, lambda: iter(self._stream), saved), []
            if number < passes:
                self._next()
        self.calendar.passes, self.calendar.taken = passes, 0

    def state(self) -> dict[str, Any]:
        """The position, with the passes that were started."""
        return {**super().state(), "calls": self._passes.state()}

    def _stop(self) -> None:
        super().close()

    def close(self) -> None:
        """Stops the thread. Batches that were only looked at wait for the next call with the same generator."""
        self._stop()
        if not self.rewinds and self._first and _can_be_key(self._stream):
            _unread[self._stream] = self._first
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
