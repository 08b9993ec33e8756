"""Whether an attempt that failed is followed by another, and after how long."""

from __future__ import annotations

_FIRST = 1.0
_LONGEST = 60.0


class Restarts:
    """Counts restarts. Each waits twice as long as the last: 1, 2, 4, ... and at most 60 s.

    Args:
        most: int; restarts that there may be.

    Attributes:
        repeated: bool; whether two attempts one after the other failed at the same step with the same error. Another would
            fail there too, so there is none.

    >>> restarts = Restarts(3)
    >>> restarts.next("ValueError: no | epoch 1, step 2"), restarts.next(None), restarts.next("other"), restarts.next(None)
    (1.0, 2.0, 4.0, None)
    """

    def __init__(self, most: int) -> None:
        self._most, self._count = most, 0
        self._error: str | None = None
        self.repeated = False

    def next(self, error: str | None) -> float | None:
        """The seconds before the next attempt; None: there is none.

        Args:
            error: what ended the last one and at which step, or None where that was not the program's doing.
        """
        self.repeated = error is not None and error == self._error
        self._error = error
        if self._count >= self._most or self.repeated:
            return None
        self._count += 1
        return min(_LONGEST, _FIRST * 2 ** (self._count - 1))
