"""Inputs that give one batch after the other and nothing else: generators, iterators, iterables, torch DataLoaders."""

from __future__ import annotations

import itertools
import logging
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from .arrays import RAN_OUT
from .batches import BatchCheck, common_spec, host_rows, standard_batch
from .feed import Feed, Group, Grouping
from .ordered import noted
from .source import Chunk

_log = logging.getLogger("unisono")

# Batches that were drawn from a generator to learn their shapes and not used: the next call starts with them.
_unread: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


class StreamSource:
    """Batches from an iterator, or from anything that can be iterated over again and again.

    Owns the thread that draws. Draws as many batches as an epoch has steps, and no more. An iterator is one
    stream over all epochs; an iterable starts again with every epoch, unless `steps_per_epoch` lets a pass
    last longer. `rewinds` is false for an iterator: then a resume is exact only if a new one gives the same batches.
    """

    per_worker = False
    resume_by = "skip"
    batch_rows: int | None = None

    def __init__(self, stream: Any, kind: str, steps_per_epoch: int | None, steady: bool) -> None:
        """Draws the first two batches, and keeps them for the first epoch.

        Args:
            stream: iterator or iterable of batches.
            kind: its name in messages.
            steps_per_epoch: int or None; batches of an epoch; None: until it ends.
            steady: see `Grouping`.

        Raises:
            ValueError: if it has no batch, or batches that are none.
        """
        self._stream = stream
        self._kind = kind
        self._once = hasattr(stream, "__next__")
        self.rewinds = not self._once
        self._wanted = steps_per_epoch
        self.steps_per_epoch = steps_per_epoch or (None if self._once else _length(stream))
        self._grouping = Grouping(steady)
        self._feed: Feed | None = None
        self._epoch = self._step = self._passes = self._taken = 0
        self._ended = False
        self._iterator: Iterator[Any] | None = None
        self._first: list[Any] = []
        batches = [self._standard(item, number) for number, item in enumerate(self._peek())]
        if not batches:
            raise ValueError(f"The {kind} gave no batch; it is empty or has been used up, make a new one.")
        self.spec = common_spec(batches, kind)
        self._check = BatchCheck(self.spec, kind)

    def _peek(self) -> list[Any]:
        self._open()
        assert self._iterator is not None
        self._first = list(_unread.pop(self._stream, ())) if _weak(self._stream) else []
        while len(self._first) < 2:
            with noted(f"batch {len(self._first)} of the {self._kind}"):
                item = next(self._iterator, self)
            if item is self:
                break
            self._first.append(item)
        return self._first

    def _open(self) -> None:
        self._iterator = iter(self._stream)
        self._taken = 0
        self._ended = False

    def _standard(self, item: Any, number: int) -> Any:
        if isinstance(item, list) and not self._once:
            item = tuple(item)
        return standard_batch(item, self._kind, number)

    def begin_epoch(self, epoch: int) -> None:
        """Starts an epoch: an iterator goes on where it is, an iterable starts again when its pass is over."""
        self._stop()
        untouched = self._taken == 0 and not self._ended
        goes_on = self._wanted is not None and epoch == self._epoch + 1 and not self._ended
        if not self._once and not untouched and not goes_on:
            self._passes += 1
            self._first = []
            self._open()
        self._epoch, self._step = epoch, 0

    def take(self, max_steps: int) -> Chunk | None:
        """The next chunk: at most `max_steps` batches of equal rows.

        Raises:
            The error of the user's own code, with the number of the batch as a note.
        """
        if self._wanted is not None and self._step >= self._wanted:
            return None
        if self._feed is None:
            self._feed = Feed(self._groups)
        chunk = self._feed.take(max_steps, self.spec)
        if chunk is None:
            self._end()
            return None
        self._step += chunk.steps
        self._taken += chunk.steps
        return chunk

    def _end(self) -> None:
        self._ended = True
        if self._wanted is not None or (self._once and self._step == 0):
            warnings.warn(RAN_OUT, stacklevel=3)
        elif not self._once:
            self.steps_per_epoch = self._step

    def _groups(self, waiting: Callable[[], bool]) -> Iterator[Group]:
        return self._grouping.groups(self._checked(self._step), waiting)

    def _checked(self, first: int) -> Iterator[Any]:
        for step in itertools.count(first):
            if self._wanted is not None and step >= self._wanted:
                return
            with noted(f"batch {step} of epoch {self._epoch}, from the {self._kind}"):
                item = self._next(self)
            if item is self:
                return
            batch = self._standard(item, step)
            yield batch, self._check.layout(batch, step), host_rows(batch)

    def _next(self, default: Any) -> Any:
        if self._first:
            return self._first.pop(0)
        return next(self._iterator, default) if self._iterator is not None else default

    def drawn(self, steps: int) -> None:
        """Every step of a chunk is there."""

    def state(self) -> dict[str, Any]:
        """The number of batches used so far."""
        return {"epoch": self._epoch, "step": self._step, "passes": self._passes, "taken": self._taken}

    def restore(self, state: dict[str, Any]) -> None:
        """Draws and drops the batches that were used. Right if the stream gives the same batches as it did then.

        Raises:
            ValueError: if it ends before.
        """
        self._stop()
        taken, passes = int(state["taken"]), int(state["passes"])
        if self._once and taken < self._taken:
            warnings.warn(
                f"The {self._kind} cannot go back from batch {self._taken} to batch {taken}; training goes on with its "
                "next batch. Give a tf.data.Dataset or a keras.utils.PyDataset for an exact resume.",
                stacklevel=2,
            )
        if not self._once:
            self._start_passes(passes)
        for number in range(self._taken, taken):
            if self._next(self) is self:
                raise ValueError(
                    f"The {self._kind} has only {number} batches, but the run to resume had used {taken}."
                )
        self._epoch, self._step = int(state["epoch"]), int(state["step"])
        self._taken, self._passes = taken, passes
        _log.warning("Resumed the %s by drawing and dropping %d batches.", self._kind, taken)

    def _start_passes(self, passes: int) -> None:
        """Starts the passes that are over, so that an order drawn from a random generator is the one of this pass."""
        if self._taken or self._passes > passes:
            self._open()
            self._first = []
        while self._passes < passes:
            self._passes += 1
            self._first = []
            self._open()
            if self._passes < passes:
                self._next(None)

    def _stop(self) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()

    def close(self) -> None:
        """Stops the thread. Batches that were only looked at wait for the next call with the same generator."""
        self._stop()
        if self._once and self._first and _weak(self._stream):
            _unread[self._stream] = self._first
        self._iterator = None


def _weak(stream: Any) -> bool:
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
