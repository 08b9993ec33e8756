"""How many steps the next execution takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ...callbacks.call_schedule import steps_until_call
from .executions import Execution

_SHARE_OF_CALLS = 0.05  # of the time of executions
_LONGEST = 1.0  # seconds that a callback may have to wait


class ExecutionLength:
    """Sizes executions so that each lasts about `target` seconds, and ends where a callback wants to be called.

    Where calls themselves take long (`call_seconds` of the function: thousands of variables), it is longer, up to a second.

    Args:
        fixed: int or None; the steps of every execution when the user fixed them (then callbacks wait for its end, as
            in Keras).
        callbacks: the callbacks of the loop.
        phase: "train", "test" or "predict".
        step: int; the steps of the epoch that are done.
        function: what runs the steps; it says whether the last execution compiled something (`fresh`), keeps the size that
            was found (`usual_steps`) for the next epoch, and is told how long each execution took (`ended`).
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
        """The steps of the next execution."""
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
        """The number that callbacks are told at the end of an execution of `done` steps.

        It is that of the last batch. Where the user fixed the steps it is what Keras tells, for which every execution is
        full, the last of an epoch included.
        """
        return self.step - done + (done if self._fixed is None else self._fixed) - 1

    def done(self, steps: int, execution: Execution | None = None) -> None:
        """Notes that the execution ended, after `steps` steps, and that its results are there.

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
