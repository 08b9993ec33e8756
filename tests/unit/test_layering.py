"""Imports only go down, and what is private of Keras and TensorFlow is touched in one module of each package."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[2]
# A package may import those with a smaller number; two with the same number do not know each other.
LEVELS = {"distribute": 0, "optimizers": 1, "callbacks": 2, "mixed_precision": 2, "trainer": 3, "unisono": 4}
PRIVATE = ("keras.src", "tensorflow.python", "tensorflow.core", "tensorflow.compiler")


def modules(package: str) -> Iterator[tuple[tuple[str, ...], pathlib.Path, ast.Module]]:
    """(the names of the module's package, its file, its syntax tree) of every module in `package`."""
    above = ("unisono",) if package == "unisono" else ("unisono", package)
    for path in sorted((ROOT / package).rglob("*.py")):
        inside = path.relative_to(ROOT / package).parts[:-1]
        yield above + inside, path, ast.parse(path.read_text())


def imported(home: tuple[str, ...], tree: ast.Module) -> Iterator[str]:
    """The full dotted name of everything that a module imports, at its top or inside of a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = home[: len(home) - node.level + 1] if node.level else ()
            start = ".".join((*base, *([node.module] if node.module else [])))
            yield from (f"{start}.{alias.name}" for alias in node.names)


def package_of(name: str) -> str | None:
    parts = name.split(".")
    if parts[0] != "unisono":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in LEVELS else "unisono"


def test_relative_imports_are_understood():
    tree = ast.parse(
        "from ..distribute import a\nfrom . import b\nimport unisono.callbacks\nimport keras.src.x"
    )
    names = list(imported(("unisono", "trainer"), tree))
    assert names == ["unisono.distribute.a", "unisono.trainer.b", "unisono.callbacks", "keras.src.x"]
    assert [package_of(name) for name in names] == ["distribute", "trainer", "callbacks", None]


@pytest.mark.parametrize("package", LEVELS)
def test_imports_go_down(package):
    found = 0
    for home, path, tree in modules(package):
        found += 1
        for name in imported(home, tree):
            other = package_of(name)
            if other is None or other == package:
                continue
            assert LEVELS[other] < LEVELS[package], f"{path.relative_to(ROOT)} imports {name}"
    assert found > 3


@pytest.mark.parametrize("package", LEVELS)
def test_private_names_are_touched_in_internals_only(package):
    for home, path, tree in modules(package):
        if path.stem.endswith("internals"):
            continue
        private = [name for name in imported(home, tree) if name.startswith(PRIVATE)]
        reached = [
            ast.unparse(node)
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and ast.unparse(node) in ("keras.src", "tf.__internal__")
        ]
        assert not private + reached, f"{path.relative_to(ROOT)} touches {private + reached}"


def test_tests_that_internals_modules_name_exist():
    named = set()
    for package in LEVELS:
        for _, path, tree in modules(package):
            if path.stem.endswith("internals"):
                words = (word.strip("`.,;:()") for word in (ast.get_docstring(tree) or "").split())
                named.update(word for word in words if word.startswith("tests/"))
    assert len(named) > 4
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]
