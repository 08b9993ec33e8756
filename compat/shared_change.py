"""Changes that hold in a block: made when the first user enters, in any thread, and undone when the last one leaves."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_ABSENT = object()
_lock = threading.RLock()
_held: dict[Any, list[Any]] = {}  # by the key of a change: the number of users inside, and what undoes it


@contextlib.contextmanager
def share_change(key: Any, make: Callable[[], Callable[[], object]]) -> Iterator[None]:
    """Make a change for the block, which `key` identifies: `make()` makes it and returns the function that undoes it."""
    with _lock:
        if key not in _held:
            _held[key] = [0, make()]
        _held[key][0] += 1
    try:
        yield
    finally:
        with _lock:
            _held[key][0] -= 1
            if not _held[key][0]:
                _held.pop(key)[1]()


def share_attribute(
    owner: Any, name: str, make: Callable[[Any], Any]
) -> contextlib.AbstractContextManager[None]:
    """Replace the attribute of an object or a class inside, past Keras' tracking, by `make` of its original value."""

    def change() -> Callable[[], object]:
        kind = type if isinstance(owner, type) else object
        before = vars(owner).get(name, _ABSENT)
        kind.__setattr__(owner, name, make(getattr(owner, name)))
        if before is _ABSENT:
            return lambda: kind.__delattr__(owner, name)
        return lambda: kind.__setattr__(owner, name, before)

    return share_change((id(owner), name), change)


@contextlib.contextmanager
def share_attributes(name: str, makers: Iterable[tuple[Any, Callable[[Any], Any]]]) -> Iterator[None]:
    """Do as `share_attribute` for several objects, each with its `make`."""
    with contextlib.ExitStack() as stack:
        for owner, make in makers:
            stack.enter_context(share_attribute(owner, name, make))
        yield
