"""Measures what tests/budget.toml limits: the size of the project, and the changed attributes of Keras and TensorFlow.

`python -m tests.budget` prints the current values, `--write` writes them into the file.
"""

from __future__ import annotations

import ast
import json
import pathlib
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
FILE = ROOT / "tests" / "budget.toml"
PACKAGES = (
    "compat",
    "distribute",
    "optimizers",
    "state",
    "callbacks",
    "mixed_precision",
    "trainer",
    "unisono",
)
CODE = (tokenize.NAME, tokenize.NUMBER, tokenize.STRING, tokenize.OP)
HEADER = """\
# Limits that tests/unit/test_budget.py compares with the values of today; `python -m tests.budget --write` writes those.
# They only go down. A commit that needs more removes something, or another commit raises the limit and says why.
# lines and tokens: of the Python files of each package, which may be 2 % above their limit; a regression test costs
# nothing, so tests have no limit.
# A token is a name, a number, a string or an operator, no comment and no docstring.
# changed_attributes: of the modules and classes of Keras and TensorFlow, after `import unisono`, while a step is traced,
# and after a fit.
"""


def sizes() -> dict[str, dict[str, int]]:
    """The current lines and tokens, as in the file."""
    files = {each: python_files(each) for each in PACKAGES}
    lines = {each: sum(len(p.read_bytes().splitlines()) for p in paths) for each, paths in files.items()}
    tokens = {each: sum(code_tokens(p.read_text()) for p in paths) for each, paths in files.items()}
    return {"lines": lines, "tokens": tokens}


def python_files(folder: str) -> list[pathlib.Path]:
    """The Python files of a folder that git tracks, or all of them without git."""
    command = ["git", "ls-files", "-z", "--", f"{folder}/*.py"]
    try:
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return sorted((ROOT / folder).rglob("*.py"))
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def code_tokens(source: str) -> int:
    """The names, numbers, strings and operators of a program. An f-string is one token, as before Python 3.12."""
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node, clean=False) is not None
    }
    count = depth = 0
    for token in tokenize.generate_tokens(iter(source.splitlines(keepends=True)).__next__):
        name = tokenize.tok_name[token.type]
        if name in ("FSTRING_START", "TSTRING_START"):
            depth += 1
            count += depth == 1
        elif name in ("FSTRING_END", "TSTRING_END"):
            depth -= 1
        elif not depth and token.type in CODE and token.start not in docstrings:
            count += 1
    return count


def changed_attributes() -> dict[str, list[str]]:
    """The attributes of Keras and TensorFlow that differ from the originals, measured in a new process."""
    command = [sys.executable, "-m", "tests.budget", "--changed"]
    run = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(run.stdout.splitlines()[-1])


def _write() -> None:
    values = sizes() | {"changed_attributes": {w: len(names) for w, names in changed_attributes().items()}}
    tables = (f"\n[{name}]\n" + "".join(f"{k} = {v}\n" for k, v in t.items()) for name, t in values.items())
    text = HEADER + "".join(tables)
    print(text)
    if "--write" in sys.argv:
        FILE.write_text(text)


def _print_changed() -> None:
    """Runs in the new process. Plain Keras trains first, to load its lazy imports."""
    import keras
    import numpy as np
    import tensorflow as tf

    def fit(sequential: type[keras.Sequential], in_a_step: Callable[[], None], most: bool = False) -> None:
        class Noting(keras.layers.Layer):
            def call(self, x: Any) -> Any:
                if tf.distribute.get_replica_context() is not None:
                    in_a_step()
                return x

        with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
            model = sequential([keras.Input((2,)), Noting(), keras.layers.Dense(1)])
            optimizer = keras.optimizers.SGD(gradient_accumulation_steps=2 if most else None)
            model.compile(optimizer, "mse", metrics=["mae"], jit_compile=most)  # more is changed under XLA
        model.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)

    fit(keras.Sequential, lambda: None)
    before, found = _attributes(), {}
    import unisono

    found["import"] = _changed(before)
    fit(unisono.Sequential, lambda: found.update(trace=_changed(before)), True)
    found["fit"] = _changed(before)
    print(json.dumps(found))


def _attributes() -> dict[tuple[str, str], Any]:
    """Every attribute of each module and class of Keras and TensorFlow, by owner name and attribute name."""
    found, seen = {}, set()
    for owner_name, owner in list(_owners()):
        if id(owner) not in seen:
            seen.add(id(owner))
            found.update({(owner_name, name): value for name, value in list(vars(owner).items())})
    return found


def _owners() -> Iterator[tuple[str, Any]]:
    for name, module in sorted(sys.modules.items()):
        if module is not None and _is_theirs(name):
            yield name, module
            for each in list(vars(module).values()):
                if isinstance(each, type) and _is_theirs(each.__module__):
                    yield f"{each.__module__}.{each.__qualname__}", each


def _is_theirs(name: str) -> bool:
    return name.partition(".")[0] in ("keras", "tensorflow")


def _changed(before: dict[tuple[str, str], Any]) -> list[str]:
    """Python creates `__annotations__` on first access."""
    now = _attributes().items()
    return sorted(
        ".".join(key) for key, value in now if value is not before.get(key) and key[1] != "__annotations__"
    )


if __name__ == "__main__":
    _print_changed() if "--changed" in sys.argv else _write()
