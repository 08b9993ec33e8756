"""How long the executions of asynchronous training are, and where all of them must have ended."""

from __future__ import annotations

import time
from typing import Any

import keras

from ...callbacks.wake import steps_to_wake

_TARGET_SECONDS = 0.1
MOST_STEPS = 512
"""Of one execution."""


class AsyncPace:
    """How many steps the next execution takes: about 0.1 s, and few near the end so that no worker is waited for."""

    def __init__(self, fixed: int | None, workers: int, epoch_steps: int | None, most: int | None) -> None:
        self._fixed, self._workers, self._epoch_steps, self._most = fixed, workers, epoch_steps, most
        self._steps, self._results, self._last = 1.0, 0, time.perf_counter()

    def next(self, scheduled: int, left: int | None = None, most: int | None = None) -> int:
        """The steps of the execution after `scheduled` steps of the epoch, of which at most `left` may follow."""
        steps = self._fixed if self._fixed is not None else int(self._steps)
        if self._fixed is None and self._epoch_steps is not None and self._workers > 1:
            steps = min(steps, max(1, (self._epoch_steps - scheduled) // (2 * self._workers)))
        for bound in (left, most, self._most):
            steps = steps if bound is None else min(steps, bound)
        return max(1, steps)

    def done(self, steps: int, began: float) -> None:
        """Notes a result: results should come every `0.1 s / workers`."""
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        self._results += 1
        if self._results <= self._workers:  # these have compiled, or waited for the others that did
            return
        wanted = steps * _TARGET_SECONDS / self._workers / max(seconds, 1e-6)
        self._steps = max(1.0, min(wanted, 2 * self._steps, float(MOST_STEPS)))


def next_stop(callbacks: list[Any], step: int) -> int | None:
    """Steps until a callback wants to find all of them done: one that saves."""
    wanted = [
        wake
        for callback in callbacks
        if _saves(callback) and (wake := steps_to_wake(callback, step)) is not None
    ]
    return min(wanted, default=None)


def _saves(callback: Any) -> bool:
    return hasattr(callback, "steps_to_wake") or isinstance(callback, keras.callbacks.ModelCheckpoint)


def wants_each_step(callbacks: list[Any]) -> bool:
    """Whether a callback has a hook for every step."""
    return any(not _saves(callback) and steps_to_wake(callback, 0) == 1 for callback in callbacks)
