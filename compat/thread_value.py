"""A value of each thread, which holds in a block."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any


class ThreadValue(threading.local):
    """Owns one value for each thread, which is `value` outside of such blocks."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    @contextlib.contextmanager
    def set_to(self, value: Any) -> Iterator[None]:
        """In the block this thread has another value."""
        outer, self.value = self.value, value
        try:
            yield
        finally:
            self.value = outer
