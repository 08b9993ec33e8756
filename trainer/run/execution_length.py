"""The number of steps of the next compiled call."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...callbacks.call_schedule import steps_until_call
from .executions import Execution

_SHARE_OF_CALLS = 0.05  # the overhead's share of the time of compiled calls
_LONGEST = 1.0  # seconds that a callback may have to wait


class ExecutionLength:
    """Sizes compiled calls so that each lasts about `target` seconds, and ends where a callback must be called.

    Where the overhead of a call is large (`call_seconds` of the function: thousands of variables), it is longer, up to 1 s.

    Args:
        fixed: int or None; the steps of every compiled call when the user set them (then callbacks wait for its end, as
            in Keras).
        callbacks: the callbacks of the loop.
        phase: "train", "test" or "predict".
        step: int; the completed steps of the epoch.
        function: runs the steps; it reports whether the last compiled call included compilation (`fresh`), keeps the size
            (`usual_steps`) for the next epoch, and receives the duration of each compiled call (`ended`).
        target: float; seconds.
        clock: () -> float; seconds.
    """

    def __init__(
        self,
        fixed: int | None,
        callbacks: list[Any],
        phase: str = "train",
        step: int = 0,
        function: Any = None,
        target: float = 0.1,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._fixed, self._callbacks, self._phase = fixed, callbacks, phase
        self.step = step
        self._target, self._clock = target, clock
        self._function = function
        self._steps = getattr(function, "usual_steps", 1)
        self._began = 0.0

    def next(self) -> int:
        """The number of steps of the next compiled call."""
        self._began = self._clock()
        if self._fixed is not None:
            return self._fixed
        recorder = getattr(self._function, "recorder", None)
        steps = self._steps if recorder is None else min(self._steps, recorder.most_steps)
        for callback in self._callbacks:
            wake = steps_until_call(callback, self.step, self._phase, records_logs=recorder is not None)
            if wake is not None:
                steps = min(steps, max(1, wake))
        return steps

    def last_batch(self, done: int) -> int:
        """The batch number for callbacks at the end of a compiled call of `done` steps.

        It is that of the last batch. Where the user set the steps, it is Keras' number, which assumes that every compiled
        call is full, including the last of an epoch.
        """
        return self.step - done + (done if self._fixed is None else self._fixed) - 1

    def done(self, steps: int, execution: Execution | None = None) -> None:
        """Records that the compiled call ended, after `steps` steps, and that its results are ready.

        The next one grows or shrinks.
        """
        seconds = self._clock() - self._began
        self.step += steps
        if steps < 1:
            return
        function = self._function
        if not getattr(function, "fresh", False):
            call = getattr(function, "call_seconds", 0.0)
            target = max(self._target, min(call / _SHARE_OF_CALLS, _LONGEST))
            wanted = int(target * steps / max(seconds, 1e-6))
            self._steps = max(1, min(wanted, 8 * steps))
            if function is not None:
                function.usual_steps = self._steps
        if execution is not None and function is not None:
            function.ended(execution, steps, seconds)
