"""Which callback of a resumed fit a saved state belongs to: by class and by what tells callbacks of one class apart."""

from __future__ import annotations

import collections
import os
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

# Attributes of Keras' callbacks, and by habit of a user's own, that say what a callback is for.
_PURPOSE = ("name", "monitor", "mode")
_PLACES = ("filepath", "filename", "log_dir", "directory", "path")


def purpose_of(callback: Any) -> dict[str, str]:
    """What tells a callback from others of its class: what it monitors, and where it writes."""
    found = {name: getattr(callback, name, None) for name in (*_PURPOSE, *_PLACES)}
    return {name: os.fspath(value) for name, value in found.items() if isinstance(value, str | os.PathLike)}


def named(callbacks: Iterable[Any]) -> list[tuple[str, Any]]:
    """Each callback with a name of its own: `EarlyStopping(val_loss, min)`; a second one of the same gets a number."""
    seen: collections.Counter[str] = collections.Counter()
    result = []
    for callback in callbacks:
        name = title(type(callback).__name__, purpose_of(callback))
        seen[name] += 1
        result.append((name if seen[name] == 1 else f"{name}#{seen[name]}", callback))
    return result


def title(name: str, purpose: dict[str, str]) -> str:
    """A class with its purpose, for messages."""
    words = [value for value in purpose.values() if value != "auto"]
    return f"{name}({', '.join(words)})" if words else name


def matched(saved: Sequence[tuple[str, Any]], callbacks: Sequence[Any]) -> dict[int, Any]:
    """The callback for each saved state that has one, by the number of the state.

    A state goes to a callback of the same class that monitors the same. Among several of them those with the same paths
    belong together, then those whose files have the same names; what is left goes in order, if there are as many as before.

    Args:
        saved: class and purpose of each state; a purpose of None, of the first versions, is not known.
        callbacks: those of this fit.
    """
    states = dict(enumerate(saved))
    left = list(callbacks)
    found: dict[int, Any] = {}
    for told_by in (_with_places, _with_file_names, _without_places, _class_alone):
        groups: dict[Hashable, tuple[list[int], list[Any]]] = collections.defaultdict(lambda: ([], []))
        for number, (name, purpose) in states.items():
            if (purpose is None) == (told_by is _class_alone):
                groups[name, told_by(purpose)][0].append(number)
        for callback in left:
            groups[type(callback).__name__, told_by(purpose_of(callback))][1].append(callback)
        for numbers, alike in groups.values():
            if len(numbers) == len(alike):
                for number, callback in zip(numbers, alike):
                    found[number] = callback
                    del states[number]
                    left = [each for each in left if each is not callback]
    return found


def _with_places(purpose: dict[str, str]) -> Hashable:
    return tuple(purpose.items())


def _with_file_names(purpose: dict[str, str]) -> Hashable:
    return tuple((name, os.path.basename(v) if name in _PLACES else v) for name, v in purpose.items())


def _without_places(purpose: dict[str, str]) -> Hashable:
    return tuple((name, v) for name, v in purpose.items() if name not in _PLACES)


def _class_alone(purpose: Any) -> Hashable:
    return ()
