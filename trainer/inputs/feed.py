"""Batches made by Python code while the device is at work: one thread, a few groups of batches ahead.

A group is many batches in one tensor, so that one execution can run through them; a chunk is a part of a
group, so its size never depends on how fast the thread is unless that is harmless (see `Grouping.steady`).
"""

from __future__ import annotations

import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from .readers import slice_reader, split_reader, whole_reader
from .rows import concat_rows
from .source import Chunk, Source

GROUP_BYTES = 16 * 2**20
_GROUP_SECONDS = 0.05
_STATIC_ROWS = 3


@dataclasses.dataclass(frozen=True)
class Group:
    """Batches in one tensor for each array.

    Attributes:
        arrays: nest of tensors; the rows of all batches, in order.
        splits: int64 `[batches + 1]`; where each batch starts, and the end.
        rows: int or None; the rows of each batch when the compiled function shall know them.
        whole: whether the arrays are one batch as they are: they have different numbers of rows.
    """

    arrays: Any
    splits: np.ndarray
    rows: int | None
    whole: bool = False

    @property
    def steps(self) -> int:
        """The batches."""
        return len(self.splits) - 1

    def part(self, first: int, steps: int, layout: Any) -> Chunk:
        """Batches `first` to `first + steps - 1` as a chunk; nothing is copied."""
        place: Any = 0
        if self.whole:
            reader = whole_reader(str(layout))
        elif self.rows is None:
            place, reader = self.splits[first : first + steps + 1], split_reader(str(layout))
        else:
            place, reader = self.splits[first], slice_reader(self.rows, str(layout))
        inputs = (self.arrays, tf.constant(place, tf.int64))
        signature = (layout, tf.TensorSpec([None] * np.ndim(place), tf.int64))
        return Chunk(inputs, steps, self.rows, reader, signature=signature)


class Grouping:
    """Decides which batches go into one group, and joins them.

    The first few numbers of rows are made known to the compiled function; inputs with more of them are read
    with rows that it does not know, so that it is not traced for each.

    Args:
        steady: whether the groups must be the same in every run and on every worker; otherwise a group is closed early
            when the consumer waits for it.
    """

    def __init__(self, steady: bool) -> None:
        self._steady = steady
        self._most = 16 if steady else 1024
        self._seen: set[int] = set()

    def groups(
        self, batches: Iterator[tuple[Any, Any, int | None]], waiting: Callable[[], bool]
    ) -> Iterator[Group]:
        """Joins `(batch, layout, rows)` to groups; an error in `batches` comes after the good ones before it.

        A batch without a number of rows (its arrays have different ones) is a group of its own.
        """
        held: list[tuple[Any, Any, int | None]] = []
        held_bytes, began = 0, 0.0
        failure: BaseException | None = None
        while True:
            try:
                item = next(batches, None)
            except BaseException as error:
                item, failure = None, error
            if held and (item is None or not self._fits(held, held_bytes, item)):
                yield self._join(held)
                held, held_bytes = [], 0
            if failure is not None:
                raise failure
            if item is None:
                return
            if not held:
                began = time.monotonic()
            held.append(item)
            held_bytes += batch_bytes(item[0])
            if not self._steady and waiting() and time.monotonic() - began > _GROUP_SECONDS:
                yield self._join(held)
                held, held_bytes = [], 0

    def _fits(self, held: list[Any], held_bytes: int, item: Any) -> bool:
        if len(held) >= self._most or held_bytes + batch_bytes(item[0]) > GROUP_BYTES:
            return False
        if held[0][2] is None or item[2] is None:
            return False
        if held[0][1] == item[1]:
            return True
        return self._varying(item[2]) and self._varying(held[0][2]) and _same_but_rows(held[0][1], item[1])

    def _varying(self, rows: int) -> bool:
        return rows not in self._seen and len(self._seen) >= _STATIC_ROWS

    def _join(self, held: list[tuple[Any, Any, int | None]]) -> Group:
        rows = held[0][2]
        if rows is None:
            with tf.device("CPU:0"):
                arrays = tf.nest.map_structure(_join_leaves, held[0][0])
            return Group(arrays, np.array([0, 1]), None, whole=True)
        if not self._varying(rows):
            self._seen.add(rows)
        splits = np.cumsum([0, *(count or 0 for _, _, count in held)], dtype=np.int64)
        with tf.device("CPU:0"):
            arrays = tf.nest.map_structure(_join_leaves, *(batch for batch, _, _ in held))
        return Group(arrays, splits, rows if rows in self._seen else None)


def _same_but_rows(a: Any, b: Any) -> bool:
    """Whether two layouts (see `PythonBatches`) of dense arrays differ in nothing but their rows."""
    return a[0] == b[0] and all(
        isinstance(p, tuple) and isinstance(q, tuple) and p[0] == q[0] and p[1][1:] == q[1][1:]
        for p, q in zip(a[1:], b[1:])
    )


def _join_leaves(*leaves: Any) -> Any:
    if leaves[0] is None:
        return None
    if isinstance(leaves[0], np.ndarray):
        return tf.constant(leaves[0] if len(leaves) == 1 else np.concatenate(leaves))
    return concat_rows(leaves)


def batch_bytes(batch: Any) -> int:
    """The bytes of all NumPy arrays and tensors of a batch."""
    total = 0
    for leaf in tf.nest.flatten(batch, expand_composites=True):
        if leaf is not None:
            size = leaf.nbytes if isinstance(leaf, np.ndarray) else leaf.dtype.size * int(np.prod(leaf.shape))
            total += max(size, 1)
    return total


class Feed:
    """A thread that runs ahead of the training by a few groups. Owns the thread, not what it reads from.

    Args:
        groups: called with a function that says whether the consumer waits; an iterator of groups.
    """

    def __init__(self, groups: Callable[[Callable[[], bool]], Iterator[Group]]) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(maxsize=2)
        self._stop = threading.Event()
        self._group: Group | None = None
        self._first = 0
        self._over: BaseException | bool = False
        self._thread = threading.Thread(target=self._work, args=(groups,), daemon=True, name="unisono-feed")
        self._thread.start()

    def _work(self, groups: Callable[[Callable[[], bool]], Iterator[Group]]) -> None:
        try:
            for group in groups(self._queue.empty):
                if not self._put(group):
                    return
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, item: Any) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def take(self, max_steps: int, signature: Any) -> Chunk | None:
        """The next batches, or None when there are no more.

        Raises:
            The error of the user's own code, once all batches before it have been taken.
        """
        if self._group is None and not self._next_group():
            return None
        group = self._group
        assert group is not None
        steps = min(max_steps, group.steps - self._first)
        chunk = group.part(self._first, steps, signature)
        self._first += steps
        if self._first == group.steps:
            self._group = None
        return chunk

    def _next_group(self) -> bool:
        if self._over is False:
            item = self._wait()
            if isinstance(item, Group):
                self._group, self._first = item, 0
                return True
            self._over = item if isinstance(item, BaseException) else True
            self._thread.join(timeout=5)
        if isinstance(self._over, BaseException):
            raise self._over
        return False

    def _wait(self) -> Any:
        while True:
            try:
                return self._queue.get(timeout=1)
            except queue.Empty:
                if not self._thread.is_alive() and self._queue.empty():
                    return RuntimeError("The thread that reads the input has ended without a result.")

    def close(self) -> None:
        """Stops the thread; waits for at most five seconds while the user's code makes a batch."""
        self._stop.set()
        self._thread.join(timeout=5)


class FedSource(Source):
    """Batches that a thread makes ahead of the training. Owns the thread of the epoch."""

    _layout: Any
    _feed: Feed | None = None

    def _groups(self) -> Callable[[Callable[[], bool]], Iterator[Group]]:
        """What gives the groups from the position on to the end of the epoch; see `Feed`."""
        raise NotImplementedError

    def _read(self, steps: int) -> Chunk | None:
        if self._feed is None:
            self._feed = Feed(self._groups())
        chunk = self._feed.take(steps, self._layout)
        self.calendar.ended = self.calendar.ended or chunk is None
        return chunk

    def close(self) -> None:
        """Stops the thread."""
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()
