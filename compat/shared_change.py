"""Reference-counted changes: made when the first user enters, and undone when the last one leaves."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def shared_change(
    make: Callable[[], object], undo: Callable[[], object]
) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """A context manager inside of which a change holds. Counts the users inside, in all threads."""
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


_ABSENT = object()
_attributes_lock = threading.Lock()
_attributes: dict[tuple[int, str], list[Any]] = {}  # the number of users inside, and the original value


@contextlib.contextmanager
def shared_attribute(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Inside, the attribute of an object is `make` of its original value; the first user's change serves all threads.

    The attribute is set past Keras' tracking. The original value may be a method of the class.
    """
    key = id(owner), name
    with _attributes_lock:
        if key not in _attributes:
            _attributes[key] = [0, vars(owner).get(name, _ABSENT)]
            object.__setattr__(owner, name, make(getattr(owner, name)))
        _attributes[key][0] += 1
    try:
        yield
    finally:
        with _attributes_lock:
            _attributes[key][0] -= 1
            if not _attributes[key][0]:
                _, before = _attributes.pop(key)
                if before is _ABSENT:
                    object.__delattr__(owner, name)
                else:
                    object.__setattr__(owner, name, before)


@contextlib.contextmanager
def shared_attributes(name: str, makers: Iterable[tuple[Any, Callable[[Any], Any]]]) -> Iterator[None]:
    """`shared_attribute` of several objects, each with its `make`."""
    with contextlib.ExitStack() as stack:
        for owner, make in makers:
            stack.enter_context(shared_attribute(owner, name, make))
        yield
