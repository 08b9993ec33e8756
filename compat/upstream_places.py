"""The private names of Keras and TensorFlow that are used, wherever the installed versions have them.

`from ..upstream_places import name` looks a name up in `upstream_places.txt`, the one file that changes where only places
move. Its rows are `module: name our_name=name`, the newest place first, below what cannot work without them. A name that no
place has is a `Missing`, which raises an error when it is used.
"""

import contextlib
import functools
import pkgutil
from pathlib import Path
from typing import Any, NoReturn

from .versions import describe_unsupported

_part = ""
_FOUND: list[tuple[str, str, str]] = []  # what cannot work without it, module, name
for _row in Path(__file__).with_suffix(".txt").read_text().splitlines():
    _module, _, _names = _row.strip().partition(": ")
    _part = _part if _names else _module
    _FOUND += [(_part, _module, name) for name in _names.split()]
PART_OF = {name.partition("=")[0]: part for part, _, name in _FOUND}
"""What does not work without a name."""


def find_places(name: str) -> list[str]:
    """Return the places of a name, each with the name that it has there."""
    pairs = [(module, *each.partition("=")[::2]) for _, module, each in _FOUND]
    return [f"{module}.{theirs or ours}" for module, ours, theirs in pairs if ours == name]


class Missing:
    """A name that no place has: a use raises the error that says what does not work; nothing is an instance of it."""

    __slots__ = ("__name__",)

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__dict__":
            raise AttributeError(name)
        self()

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Raise the error."""
        raise ImportError(describe_unsupported(self.__name__, PART_OF[self.__name__]))

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type]:
        return (type(self.__name__, (), {"__new__": self}),)

    def __instancecheck__(self, _: Any) -> bool:
        return False

    def __or__(self, other: Any) -> Any:
        return other

    __ror__ = __or__
    __iter__ = __contains__ = __getitem__ = __call__


def __getattr__(name: str) -> Any:
    if name not in PART_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for place in find_places(name):
        with contextlib.suppress(Exception):  # a module may be broken
            found = globals()[name] = pkgutil.resolve_name(place)
            return found
    return Missing(name)


def find_owner(path: str) -> Any:
    """Return what `path` names: `keras:Model`, a name of the table, or an attribute of one (`ops.Graph`)."""
    if ":" in path:
        return pkgutil.resolve_name(path)
    name, *attributes = path.split(".")
    return functools.reduce(getattr, attributes, __getattr__(name))
