"""Imports only go down and form no cycle; only `compat` uses private names of Keras and TensorFlow."""

from __future__ import annotations

import ast
import functools
import pathlib
import re
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# A package may import packages with a smaller number; those with the same number are independent.
LEVELS = {
    **{"compat": 0, "distribute": 1, "optimizers": 2, "state": 3, "callbacks": 4, "mixed_precision": 4},
    **{"trainer": 5, "unisono": 6},
}
# The same for the sub-packages of a package. Modules next to them are unrestricted, as long as there is no cycle.
WITHIN = {
    "distribute": {"workers": 0, "launcher": 1, "parameter_servers": 1, "pipeline": 1},
    "callbacks": {"backup": 0, "report": 1, "diagnosis": 1},
    "trainer": {"inputs": 0, "step": 1, "run": 2, "parameter_servers": 3, "pipeline": 3},
}
PRIVATE = ("keras.src", "tensorflow.python", "tensorflow.core", "tensorflow.compiler")


@functools.cache
def modules(package: str) -> dict[str, tuple[pathlib.Path, ast.Module]]:
    """The file and the syntax tree of every module in `package`, by its full dotted name."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts if package == "unisono" else ("unisono", *parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path, ast.parse(path.read_text())
    return found


def imported(home: tuple[str, ...], tree: ast.Module) -> Iterator[str]:
    """The full dotted name of everything that a module imports, at top level or inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = home[: len(home) - node.level + 1] if node.level else ()
            start = ".".join((*base, *([node.module] if node.module else [])))
            yield from (f"{start}.{alias.name}" for alias in node.names)


def imports_of(package: str) -> Iterator[tuple[str, pathlib.Path, str]]:
    """(module, its file, full name of the import) for every import in `package`."""
    for module, (path, tree) in modules(package).items():
        home = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
        for name in imported(tuple(home), tree):
            yield module, path, name


def package_of(name: str) -> str | None:
    parts = name.split(".")
    if parts[0] != "unisono":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in LEVELS else "unisono"


def graph_of(package: str) -> dict[str, set[str]]:
    """Which modules of `package` each of its modules imports, anywhere in the module."""
    graph: dict[str, set[str]] = {module: set() for module in modules(package)}
    for module, _, name in imports_of(package):
        if package_of(name) != package:
            continue
        while name not in graph and "." in name:
            name = name.rpartition(".")[0]
        if name in graph and name != module:
            graph[module].add(name)
    return graph


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """The sets of modules that import each other, directly or indirectly."""
    reached = {}
    for start in graph:
        seen, todo = set(), list(graph[start])
        while todo:
            module = todo.pop()
            if module not in seen:
                seen.add(module)
                todo.extend(graph[module])
        reached[start] = seen
    found = [{other for other in reached[m] if m in reached[other]} for m in graph if m in reached[m]]
    return [circle for number, circle in enumerate(found) if circle not in found[:number]]


def test_relative_imports_are_understood():
    tree = ast.parse(
        "from ..distribute import a\nfrom . import b\nimport unisono.callbacks\nimport keras.src.x"
    )
    names = list(imported(("unisono", "trainer"), tree))
    assert names == ["unisono.distribute.a", "unisono.trainer.b", "unisono.callbacks", "keras.src.x"]
    assert [package_of(name) for name in names] == ["distribute", "trainer", "callbacks", None]


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]


@pytest.mark.parametrize("package", LEVELS)
def test_imports_go_down(package):
    for _, path, name in imports_of(package):
        other = package_of(name)
        if other is None or other == package:
            continue
        assert LEVELS[other] < LEVELS[package], f"{path.relative_to(ROOT)} imports {name}"
    assert len(modules(package)) > 3


@pytest.mark.parametrize("package", WITHIN)
def test_imports_go_down_within_a_package(package):
    levels = WITHIN[package]

    def part(module: str) -> str | None:
        return next((name for name in module.split(".")[2:3] if name in levels), None)

    up = set()
    for module, others in graph_of(package).items():
        for here, there in ((part(module), part(other)) for other in others):
            if here and there and here != there and levels[there] >= levels[here]:
                up.add((package, here, there))
    assert not up


@pytest.mark.parametrize("package", LEVELS)
def test_modules_of_a_package_form_no_circle(package):
    assert [sorted(circle) for circle in circles(graph_of(package))] == []


@pytest.mark.parametrize("package", [name for name in LEVELS if name != "compat"])
def test_private_names_are_touched_in_compat_only(package):
    for _, path, name in imports_of(package):
        assert not name.startswith(PRIVATE), f"{path.relative_to(ROOT)} imports {name}"
    for path, tree in modules(package).values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("keras.src", "tf.__internal__"):
                raise AssertionError(f"{path.relative_to(ROOT)} touches {ast.unparse(node)}")


# `sys._current_frames`, `os._exit`, and the fields of named tuples: documented despite their names.
PUBLIC_THOUGH = {"_current_frames", "_exit", "_fields"}


def attributes(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(name, source of the object) of every private attribute that is read, written or accessed by name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name, owner = node.attr, node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "attrgetter",
            "methodcaller",
            "private_method",
        ):
            name, owner = str(getattr(node.args[0], "value", "")).partition(".")[0], node.args[0]
        elif (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("getattr", "hasattr", "setattr", "delattr", "object.__setattr__")
            and len(node.args) > 1
            and isinstance(node.args[1], ast.Constant)
        ):
            name, owner = str(node.args[1].value), node.args[0]
        else:
            continue
        private = name.startswith("_") and not name.startswith(("__", "_unisono_"))
        if private and name not in PUBLIC_THOUGH:
            yield name, ast.unparse(owner)


def names_of_our_own() -> set[str]:
    """Every name that our code defines: functions, classes, variables, and attributes of `self`."""
    found = set()
    for package in [name for name in LEVELS if name != "compat"]:
        for _, tree in modules(package).values():
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.ClassDef):
                    found.add(node.name)
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    found.add(node.id)
                elif isinstance(node, ast.Attribute) and ast.unparse(node.value) in ("self", "cls"):
                    found.update({node.attr} if isinstance(node.ctx, ast.Store) else ())
    return found


@functools.cache
def names_in_compat() -> set[str]:
    """The private attributes of Keras and TensorFlow that `compat` uses."""
    found = (attributes(tree) for _, tree in modules("compat").values())
    return {name for each in found for name, owner in each if owner not in ("self", "cls")}


@pytest.mark.parametrize("package", [name for name in LEVELS if name != "compat"])
def test_private_attributes_are_touched_in_compat_only(package):
    own = names_of_our_own()
    for path, tree in modules(package).values():
        for name, owner in attributes(tree):
            where = f"{path.relative_to(ROOT)} touches `{owner}.{name}`"
            assert name in own, where
            assert owner in ("self", "cls") or owner.startswith("super(") or name not in names_in_compat(), (
                where
            )


def test_architecture_page_names_every_package_and_no_file_that_is_gone():
    page = (ROOT / "docs" / "contributing" / "architecture.md").read_text()
    listed = set(re.findall(r"^ *(\w+)/ ", page, re.MULTILINE))
    packages = {path.parent.name for name in LEVELS for path in (ROOT / name).rglob("__init__.py")}
    assert packages <= listed
    files = re.findall(r"`(?:tests/)?([\w/]+\.py)`", page)
    homes = [ROOT, ROOT / "tests", *(ROOT / "tests").rglob("*"), *(ROOT / name for name in LEVELS)]
    assert len(files) > 10
    assert not [file for file in files if not any((home / file).is_file() for home in homes)]
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and path.name[0] not in "._"}
    assert folders <= set(re.findall(r"\btests/(\w+)", (ROOT / "CONTRIBUTING.md").read_text()))
