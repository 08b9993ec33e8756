"""Schedules the next steps on the workers: how many at once, and where all of them must have ended."""

from __future__ import annotations

import collections
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ...callbacks.call_schedule import only_reads_logs, own_schedule, steps_until_call, takes_step_logs
from ..inputs import Chunk, Source
from .worker_function import HOST, WorkerFunction, pieces_of

_TARGET_SECONDS = 0.1
MOST_STEPS = 512
"""Steps of one piece."""


class PieceLength:
    """The number of steps of the next piece: about 0.1 s, and few near the end so that workers finish together."""

    def __init__(self, fixed: int | None, workers: int, epoch_steps: int | None, most: int | None) -> None:
        self._fixed, self._workers, self._epoch_steps, self._most = fixed, workers, epoch_steps, most
        self._steps, self._results, self._last = 1.0, 0, time.perf_counter()

    def next(self, scheduled: int, left: int | None = None, most: int | None = None) -> int:
        """The steps of the piece after `scheduled` steps of the epoch, of which at most `left` may follow."""
        steps = self._fixed if self._fixed is not None else int(self._steps)
        if self._fixed is None and self._epoch_steps is not None and self._workers > 1:
            steps = min(steps, max(1, (self._epoch_steps - scheduled) // (2 * self._workers)))
        return max(1, min([steps, *(bound for bound in (left, most, self._most) if bound is not None)]))

    def done(self, steps: int) -> None:
        """Records a result: results should come every `0.1 s / workers`."""
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        self._results += 1
        if self._results <= self._workers:  # these have compiled, or waited for a compilation
            return
        wanted = steps * _TARGET_SECONDS / self._workers / max(seconds, 1e-6)
        self._steps = max(1.0, min(wanted, 2 * self._steps, float(MOST_STEPS)))


class Schedule:
    """The pieces of one epoch, in order, each prepared just before it is handed out. Context: host.

    Args:
        begin: called with the number of the first step of each piece.
        stopped: whether to hand out no further piece.
        step: the completed steps of the epoch.
        most: the maximum number of steps of a piece.
        next_stop: `next_stop(step)`, the steps after `step` at which all earlier steps must be done, or None.

    Attributes:
        empty: whether there is no step at all.
        done: the steps of the epoch whose results have arrived.
    """

    def __init__(
        self,
        function: WorkerFunction,
        source: Source,
        begin: Callable[[int], None],
        stopped: Callable[[], bool],
        step: int = 0,
        epoch_steps: int | None = None,
        most: int | None = None,
        next_stop: Callable[[int], int | None] = lambda step: None,
    ) -> None:
        self._function, self._source = function, source
        self._ready: collections.deque[Chunk] = collections.deque()
        self._ended = False
        self._begin, self._stopped, self._next_stop = begin, stopped, next_stop
        self._length = PieceLength(function.fixed_steps, function.lines // 2, epoch_steps, most)
        self._scheduled = self.done = step
        self._stop: int | None = None
        first = self._draw()
        self.empty = first is None
        if first is not None:
            function.prepare(first)
            self._ready.appendleft(first)

    def _draw(self) -> Chunk | None:
        """The next piece: the rest of the source's last chunk, or the beginning of another."""
        bound = self._next_stop(self.done)
        self._stop = None if bound is None else self.done + bound
        left = None if self._stop is None else self._stop - self._scheduled
        if left is not None and left <= 0:
            return None
        while not self._ready and not self._ended:
            steps = self._length.next(self._scheduled, left, self._function.most_steps)
            with tf.device(HOST):
                chunk = self._source.take(steps)
                if chunk is not None:
                    self._ready.extend(pieces_of(chunk, self._end))
                self._ended = self._ended or chunk is None
        return self._ready.popleft() if self._ready else None

    def _end(self, steps: int) -> None:
        self._source.drawn(steps)
        self._ended = self._source.position.is_over()

    def next(self) -> Chunk | None:
        """The next piece; None where the data has ended, or until the steps in progress are done."""
        piece = None if self._stopped() else self._draw()
        if piece is not None:
            self._function.prepare(piece)
            self._begin(self._scheduled)
            self._scheduled += piece.steps
        return piece

    def arrived(self, steps: int) -> None:
        """Records that the result of a piece has arrived."""
        self.done += steps
        self._length.done(steps)

    def at_stop(self) -> bool:
        """Whether all steps are done here because a callback needs it."""
        return self._stop is not None and self.done >= self._stop and self.done == self._scheduled


def next_stop(callbacks: list[Any], step: int) -> int | None:
    """Steps until a callback needs all of them done, such as one that saves."""
    wanted = [
        until
        for callback in callbacks
        if _saves(callback) and (until := steps_until_call(callback, step)) is not None
    ]
    return min(wanted, default=None)


def _saves(callback: Any) -> bool:
    return own_schedule(callback) is not None or isinstance(callback, keras.callbacks.ModelCheckpoint)


def wants_each_step(callbacks: list[Any]) -> bool:
    """Whether a callback has a hook for every step."""
    return any(
        takes_step_logs(callback)
        or only_reads_logs(callback)
        or (not _saves(callback) and steps_until_call(callback, 0) == 1)
        for callback in callbacks
    )
