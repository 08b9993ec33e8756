"""How many steps the next execution takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ..callbacks.wake import steps_to_wake


class Pace:
    """Sizes executions so that each lasts about `target` seconds, and ends where a callback wants to be called.

    Args:
        fixed: int or None; the steps of every execution when the user fixed them (then callbacks wait for its end, as
            in Keras).
        callbacks: the callbacks of the loop.
        phase: "train", "test" or "predict".
        target: float; seconds.
        clock: () -> float; seconds.
    """

    def __init__(
        self,
        fixed: int | None,
        callbacks: list[Any],
        phase: str = "train",
        target: float = 0.1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._fixed = fixed
        self._callbacks = callbacks
        self._phase = phase
        self._target = target
        self._clock = clock
        self._steps = 1
        self._began = 0.0
        self._executions = 0

    def next(self, step: int) -> int:
        """The steps of the execution that begins after `step` steps of the epoch."""
        self._began = self._clock()
        if self._fixed is not None:
            return self._fixed
        steps = self._steps
        for callback in self._callbacks:
            wake = steps_to_wake(callback, step, self._phase)
            if wake is not None:
                steps = min(steps, max(1, wake))
        return steps

    def done(self, steps: int) -> None:
        """Notes that the execution ended, after `steps` steps; the next one grows or shrinks."""
        seconds = self._clock() - self._began
        self._executions += 1
        if steps < 1 or self._executions == 1:  # the first one compiles
            return
        wanted = int(self._target * steps / max(seconds, 1e-6))
        self._steps = max(1, min(wanted, 8 * self._steps))
