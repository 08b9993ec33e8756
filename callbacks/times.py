"""Where the time of a `fit` goes: input, compute, callbacks, and the rest."""

from __future__ import annotations

import time
from collections.abc import Callable


class Times:
    """A stopwatch with named laps. The loop calls `lap` after each part of its work; callbacks read `seconds`.

    Args:
        clock: () -> float; seconds.

    Attributes:
        seconds: dict from the name of a part to the seconds spent in it so far. The loop's parts are "input" (waiting for
            batches), "compute" (the compiled function, until its logs are numbers), "callbacks", "validation" and
            "other" (building, resetting metrics, the beginning of an epoch).

    >>> now = iter([0.0, 2.0, 5.0, 6.0])
    >>> times = Times(clock=lambda: next(now))
    >>> times.lap("input"); times.lap("compute"); times.lap("input")
    >>> times.seconds
    {'input': 3.0, 'compute': 3.0}
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last = clock()
        self.seconds: dict[str, float] = {}

    def lap(self, part: str) -> None:
        """Counts the time since the last lap as `part`."""
        now = self._clock()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now
