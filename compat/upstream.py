"""What the installed Keras and TensorFlow lack, and what differs from the versions with which the tests passed.

`signatures.txt` has a line for each name and form in one of these versions; `python -m tests.signatures` adds today's.
"""

import ast
import contextlib
import dis
import functools
import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .patches import REPLACED, WRAPPED
from .upstream_places import PART_OF, Missing, find_owner, find_places
from .versions import ATTRIBUTES, OVERRIDDEN, describe_unsupported

_HERE = Path(__file__).parent
SIGNATURES = _HERE / "signatures.txt"


def need(part: str) -> None:
    """Raise an error if the installed versions lack a name without which `part` of the library cannot work."""
    if lacking := [name for name in find_missing() if part_of(name) == part]:
        raise ImportError(describe_unsupported(", ".join(lacking), part))


@functools.cache
def find_missing() -> tuple[str, ...]:
    """Return the names that the installed versions lack: of `upstream_places.py`, or as `Owner.name`."""
    return tuple(name for name in list_names() if isinstance(look_up(name), Missing))


def list_names() -> list[str]:
    """Return every name of the tables and of the register."""
    names = [*PART_OF, *(f"{owner}.{name}" for owner, names in ATTRIBUTES.items() for name in names.split())]
    names += [f"{owner}.{name}" for owner, reasons in OVERRIDDEN.items() for name in reasons]
    return list(dict.fromkeys([*names, *_register()]))


def _register() -> dict[str, Any]:
    return {f"{each.place}.{each.name}": each for each in (*REPLACED, *WRAPPED)}


def part_of(name: str) -> str:
    """Return what cannot work without a name."""
    change = _register().get(name)
    return change.part if change else PART_OF.get(name.partition(".")[0], "Unisono")


def look_up(name: str) -> Any:
    """Return what has this name; a `Missing` if nothing has."""
    with contextlib.suppress(ImportError, AttributeError):
        return find_owner(name)
    owner, _, attribute = name.rpartition(".")
    with contextlib.suppress(ImportError, AttributeError):
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
        texts = (
            f"{p.replace(annotation=p.empty, default=p.empty)}{'=' * (p.default is not p.empty)}"
            for p in each
        )
        form += f" ({', '.join(texts)})"
    if name in _register():
        names = getattr(getattr(found, "__code__", None), "co_freevars", ())
        form += f" around {' '.join(names)}" * bool(names)
        owner = find_owner(name.rpartition(".")[0])
        elsewhere = [where for where in _modules_with(found.__name__, found) if where != owner.__name__]
        form += f" also in {' '.join(elsewhere)}" * bool(elsewhere)
    return form


def _modules_with(name: str, value: Any = None) -> list[str]:
    """Return the loaded modules of Keras and TensorFlow that have a name, with this value, or that are so named."""
    modules = {m: vars(found) for m, found in sys.modules.items() if m.startswith(_ROOTS) and found}
    return sorted(
        m
        for m, has in modules.items()
        if (has.get(name) is value if value else name in has or m.endswith(f".{name}"))
    )


_ROOTS = ("keras.src.", "tensorflow.python.")
_PACKAGES = ("callbacks", "compat", "distribute", "mixed_precision", "optimizers", "state", "trainer")


def _list_uses() -> dict[str, set[str]]:
    """Return the files that use each name of `upstream_places.py`, and each attribute of one, as `name.attribute`."""
    found: dict[str, set[str]] = {}
    for path in (path for package in _PACKAGES for path in (_HERE.parent / package).rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        imports = [
            n for n in nodes if isinstance(n, ast.ImportFrom) and (n.module or "").endswith("upstream_places")
        ]
        ours = {
            each.asname or each.name: each.name for n in imports for each in n.names if each.name in PART_OF
        }
        read = [(n.value, n.attr) for n in nodes if isinstance(n, ast.Attribute)]
        read = read if path.is_relative_to(_HERE) else []  # others use public attributes
        names = [f"{ours[v.id]}.{attr}" for v, attr in read if isinstance(v, ast.Name) and v.id in ours]
        for name in (*ours.values(), *names):
            found.setdefault(name, set()).add(str(path.relative_to(_HERE.parent)))
    return found


def _find_files(name: str) -> list[str]:
    """Return the files of `compat` that have a name, or else those of the whole library."""
    word = re.compile(rf"\b{re.split('[.:]', name)[-1]}\b")
    files = {str(path.relative_to(_HERE.parent)): path.read_text() for path in _HERE.parent.glob("*/**/*.py")}
    found = sorted(file for file, text in files.items() if word.search(text))
    return [file for file in found if file.startswith("compat/")] or found


def list_forms() -> dict[str, str]:
    """Return the form of every name, and of every attribute that is used of a module of `upstream_places.py`."""
    return {name: describe(name) for name in dict.fromkeys([*list_names(), *_list_uses()])}


def find_changes() -> Iterator[tuple[str, str, str]]:
    """Yield each name with a form that no tested version had, the form, and the files that use it."""
    known = {tuple(line.split(" ", 1)) for line in SIGNATURES.read_text().splitlines()}
    uses = _list_uses()
    for name, form in list_forms().items():
        if (name, form) in known:
            continue
        if form == "missing":
            original = re.split("[.:]", (find_places(name) or [name])[-1])[-1]
            form = f"missing; other places: {', '.join(_modules_with(original)[:3]) or 'none'}"
        yield (
            name,
            form,
            f"{part_of(name)} needs it ({', '.join(sorted(uses.get(name) or _find_files(name)))}).",
        )
