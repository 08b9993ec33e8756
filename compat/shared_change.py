"""What is changed for as long as anyone needs it: in place when the first comes, and taken back when the last has gone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


def shared_change(
    make: Callable[[], None], undo: Callable[[], None]
) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A context manager inside of which a change is made. Counts those who are inside, in all threads.

    Args:
        make: makes the change.
        undo: takes it back.
    """
    lock = threading.Lock()
    users = 0

    @contextlib.contextmanager
    def made() -> Iterator[None]:
        nonlocal users
        with lock:
            if not users:
                make()
            users += 1
        try:
            yield
        finally:
            with lock:
                users -= 1
                if not users:
                    undo()

    return made
