"""What the installed Keras and TensorFlow lack, and what differs from the versions with which the tests passed.

`signatures.txt` has a line for each name and form in one of these versions; `python -m tests.signatures` adds today's. The
owners are public names (`keras:Model`), names of `upstream_places.py`, or attributes of these.
"""

import contextlib
import dis
import functools
import importlib
import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .register import REPLACED, WRAPPED
from .upstream_places import PART_OF, Missing, find_owner, find_places
from .versions import SUPPORTED, describe_unsupported

SIGNATURES = Path(__file__).with_name("signatures.txt")
_REGISTER = {f"{each.place}.{each.name}": each for each in (*REPLACED, *WRAPPED)}


def need(part: str) -> None:
    """Raise an error if the installed versions lack a name without which `part` of the library cannot work."""
    if lacking := [name for name in find_missing() if part_of(name) == part]:
        raise ImportError(describe_unsupported(", ".join(lacking), part))


@functools.cache
def find_missing() -> tuple[str, ...]:
    """Return the private names that the installed versions lack: of `upstream_places.py`, or as `Owner.name`."""
    names = [name for name in list_names() if name in PART_OF or name in _REGISTER or "._" in name]
    return tuple(name for name in names if isinstance(look_up(name), Missing))


def list_names() -> list[str]:
    """Return every name of the table of places, of `signatures.txt` and of the register."""
    return list(dict.fromkeys([*PART_OF, *read_forms(), *_REGISTER]))


def read_forms() -> dict[str, set[str]]:
    """Return each name of `signatures.txt`, with the forms that it had in a tested version."""
    found: dict[str, set[str]] = {}
    for line in SIGNATURES.read_text().splitlines():
        name, _, form = line.partition(" ")
        found.setdefault(name, set()).add(form)
    return found


def part_of(name: str) -> str:
    """Return what cannot work without a name."""
    change = _REGISTER.get(name)
    return change.part if change else PART_OF.get(name.partition(".")[0], "Unisono")


def look_up(name: str) -> Any:
    """Return what has this name; a `Missing` if nothing has, or if finding it fails."""
    with contextlib.suppress(Exception):
        return find_owner(name)
    owner, _, attribute = name.rpartition(".")
    with contextlib.suppress(Exception):
        return "set by methods" if owner and _is_set(find_owner(owner), attribute) else Missing(name)
    return Missing(name)


def _is_set(cls: Any, name: str) -> bool:
    """Return whether a method of the class, or of a base class, sets an attribute of its objects."""
    members = [member for base in getattr(cls, "__mro__", ()) for member in vars(base).values()]
    found = [inspect.unwrap(getattr(m, "fget", None) or getattr(m, "__func__", m)) for m in members]
    codes = [each.__code__ for each in found if isinstance(each, types.FunctionType)]
    using = (dis.get_instructions(code) for code in codes if name in code.co_names)
    return any((i.opname, i.argval) == ("STORE_ATTR", name) for each in using for i in each)


def describe(name: str) -> str:
    """Return the form of a name: its kind, its parameters, and what the register assumes of a function."""
    found = look_up(name)
    if isinstance(found, Missing | types.ModuleType):
        return "missing" if isinstance(found, Missing) else "module"
    found = inspect.unwrap(found, stop=lambda f: not hasattr(f, "__unisono_original__"))
    if isinstance(found, type) or not callable(found):
        return "class" if isinstance(found, type) else "property" if isinstance(found, property) else "value"
    form = "function"
    with contextlib.suppress(ValueError, TypeError):
        each = inspect.signature(found).parameters.values()
        bare = [(p.replace(annotation=p.empty, default=p.empty), p.default is not p.empty) for p in each]
        form += f" ({', '.join(f'{p}=' if optional else str(p) for p, optional in bare)})"
    if name in _REGISTER:
        names = getattr(getattr(found, "__code__", None), "co_freevars", ())
        form += f" around {' '.join(names)}" * bool(names)
        owner, _, last = name.rpartition(".")
        elsewhere = [each for each in _modules_with(last, found) if each != find_owner(owner).__name__]
        form += f" also in {' '.join(elsewhere)}" * bool(elsewhere)
    return form


def _modules_with(name: str, value: Any = None) -> list[str]:
    """Return the loaded modules of Keras and TensorFlow that have a name, with this value, or that are so named."""
    modules = {m: vars(found) for m, found in sys.modules.items() if m.startswith(_ROOTS) and found}
    if value is None:
        return sorted(m for m, has in modules.items() if name in has or m.endswith(f".{name}"))
    return sorted(m for m, has in modules.items() if has.get(name) is value)


_ROOTS = ("keras.src.", "tensorflow.python.")


@functools.cache
def _read_files() -> dict[str, set[str]]:
    """Return the words of each file of the library that uses names, not of their tables alone."""
    home = Path(__file__).parents[1]
    paths = [path for found in home.glob("*/__init__.py") for path in found.parent.rglob("*.py")]
    words = {str(path.relative_to(home)): set(re.findall(r"\w+", path.read_text())) for path in paths}
    return {file: found for file, found in words.items() if file != "compat/versions.py"}


def find_files(name: str) -> list[str]:
    """Return the files of `compat`, or else of the library, that have the last word of a name, or an attribute of it."""
    word = re.split("[.:]", name)[-1]
    found = {file for file, words in _read_files().items() if word in words}
    found = found or {f for each in read_forms() if each.startswith(f"{name}.") for f in find_files(each)}
    return sorted(file for file in found if file.startswith("compat/")) or sorted(found)


def _find_failure(name: str) -> str:
    """Return how the import of a module fails that is there and should have the name; "" if none does."""
    for place in find_places(name.partition(".")[0]):
        try:
            importlib.import_module(place)
        except Exception as error:
            if not f"{place}.".startswith(f"{getattr(error, 'name', None)}."):
                return f", {error!r}"
    return ""


def find_changes() -> Iterator[tuple[str, str, str]]:
    """Yield each name with a form that no tested version had, the form, and the files that use it."""
    known = read_forms()
    for root in SUPPORTED:
        try:
            importlib.import_module(root)
        except Exception as error:
            yield root, f"cannot be imported: {error!r}", "Unisono needs it; nothing else was compared."
            return
    for name in list_names():
        try:
            form = describe(name)
        except Exception as error:  # of an object that is nothing like those that were tested
            form = f"not comparable: {error!r}"
        if form in known.get(name, ()):
            continue
        if form == "missing":
            original = re.split("[.:]", (find_places(name) or [name])[-1])[-1]
            form = f"missing{_find_failure(name)}; other places: {', '.join(_modules_with(original)[:3]) or 'none'}"
        yield name, form, f"{part_of(name)} needs it ({', '.join(find_files(name))})."
