"""Schedules the next steps on the workers: how many at once, and where all of them must have ended."""

import collections
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from ...callbacks.call_schedule import only_reads_logs, steps_until_call, takes_step_logs
from ...callbacks.callback import hook
from ...callbacks.monitoring.tensorboard import TensorBoard
from ..inputs import Chunk
from ..run.loops.compiled_calls import CallLength, CompiledCall
from ..run.passes import Pass
from .worker_function import HOST, pieces_of


class Schedule:
    """The calls of one pass, in order, of one piece each, prepared just before it is handed out. Context: host.

    A piece has at most `most` steps, where that is given. Attributes:
        empty: whether there is no step at all.
        length: the number of steps of the next piece.
    """

    def __init__(self, steps: Pass, most: int | None = None) -> None:
        self._pass, self._function, self._source = steps, steps.function, steps.source
        self._hooks = steps.callbacks.callbacks if steps.phase == "train" else []
        self._ready: collections.deque[Chunk] = collections.deque()
        self._ended = False
        fixed, workers = steps.fixed_steps, steps.function.lines // 2
        self.length = CallLength(fixed, step=steps.step, function=steps.function, workers=workers)
        self._most = 1 if fixed is None and wants_each_step(self._hooks) else most
        self._scheduled = self._done = steps.step
        self._stop: int | None = None
        first = self._draw()
        self.empty = first is None
        if first is not None:
            self._function.prepare(first)
            self._ready.appendleft(first)

    def __iter__(self) -> Iterator[CompiledCall]:
        """Yield the calls; without a piece where the pass waits for a result."""
        while True:
            while self._function.accepts_more() and (call := self._next()) is not None:
                yield call
            if not self._function.is_busy():
                return
            yield CompiledCall([])

    def _draw(self) -> Chunk | None:
        """Return the next piece: the rest of the source's last chunk, or the beginning of another."""
        bound = next_stop(self._hooks, self._done)
        self._stop = None if bound is None else self._done + bound
        left = None if self._stop is None else self._stop - self._scheduled
        if left is not None and left <= 0:
            return None
        while not self._ready and not self._ended:
            rest = self._pass.epoch_steps and self._pass.epoch_steps - self._scheduled
            steps = self.length.of_worker(rest, left, self._function.most_steps, self._most)
            with tf.device(HOST):
                chunk = self._source.take(steps)
                if chunk is not None:
                    self._ready.extend(pieces_of(chunk, self._end))
                self._ended = self._ended or chunk is None
        return self._ready.popleft() if self._ready else None

    def _end(self, steps: int) -> None:
        self._source.note_drawn(steps)
        self._ended = self._source.position.is_over()

    def _next(self) -> CompiledCall | None:
        """Return the next call; None where the data has ended, or until the steps in progress are done."""
        piece = None if getattr(self._pass.model, self._pass.stop) else self._draw()
        if piece is None:
            return None
        self._function.prepare(piece)
        self._scheduled += piece.steps
        return CompiledCall([piece], self._scheduled - piece.steps)

    def report(self, call: CompiledCall, done: int) -> None:
        """Note that the results of `done` steps have arrived; at a stop, those of all, which a callback needs."""
        self._done += done
        if done and self._stop is not None and self._stop <= self._done == self._scheduled:
            self._function.commit()

    def over(self) -> bool:
        """Return whether no result follows."""
        return False


def next_stop(callbacks: list[Any], step: int) -> int | None:
    """Return the steps until a callback needs all of them done, such as one that saves."""
    wanted = [
        until
        for callback in callbacks
        if _saves(callback) and (until := steps_until_call(callback, step)) is not None
    ]
    return min(wanted, default=None)


def _saves(callback: Any) -> bool:
    return hook(callback, "steps_until_call") is not None or isinstance(
        callback, keras.callbacks.ModelCheckpoint
    )


def wants_each_step(callbacks: list[Any]) -> bool:
    """Return whether a callback has a hook for every step."""
    return any(
        takes_step_logs(callback)
        or (only_reads_logs(callback) and not isinstance(callback, TensorBoard))
        or (not _saves(callback) and steps_until_call(callback, 0) == 1)
        for callback in callbacks
    )
