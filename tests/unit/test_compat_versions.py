"""The check at import covers every private name, and rejects a version that lacks one with a one-sentence error."""

import ast
import importlib
import json
import os
import pathlib
import pkgutil
import subprocess
import sys
import tomllib

import pytest

import unisono
from unisono.compat import versions

ROOT = pathlib.Path(__file__).parents[2]
PACKAGES = ("callbacks", "distribute", "mixed_precision", "optimizers", "trainer")


def is_private(name):
    return name.startswith("_") and not name.startswith(("__", "_unisono", "_abc_", "_tf_extension"))


def own_attributes(tree):
    """The private methods and attributes of the classes of a module."""
    for each in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(each):
            if isinstance(node, ast.FunctionDef):
                yield node.name
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield from [node.attr] if ast.unparse(node.value) == "self" else []
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                yield node.target.id


def test_every_attribute_that_compat_touches_is_in_the_table():
    known = {name for names in versions.ATTRIBUTES.values() for name in names.split()}
    touched = set()
    for path in (ROOT / "compat").rglob("*.py"):
        tree = ast.parse(path.read_text())
        own = set(own_attributes(tree))
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and is_private(node.attr):
                touched |= {node.attr} - own
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
                name = getattr(node.args[1], "value", "")
                touched |= {name} if isinstance(name, str) and is_private(name) else set()
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "attrgetter",
                "methodcaller",
                "private_method",
            ):
                touched.add(ast.literal_eval(node.args[0]).partition(".")[0])
    others = {"_attributes", "_CoordinatedClosureQueue", "_current_frames", "_getframe"}
    assert touched - others <= known


def test_every_private_method_that_is_overridden_is_in_the_table():
    known = {name for names in versions.OVERRIDDEN.values() for name in names}
    found = set()
    for package in PACKAGES:
        home = importlib.import_module(f"unisono.{package}")
        for module in pkgutil.walk_packages(home.__path__, f"unisono.{package}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    for module in [module for name, module in sys.modules.items() if name.startswith("unisono.")]:
        for cls in [value for value in vars(module).values() if isinstance(value, type)]:
            for number, base in enumerate(cls.__mro__):
                theirs = ("keras.src", "tensorflow")
                above = [c for c in cls.__mro__[number + 1 :] if c.__module__.startswith(theirs)]
                if base.__module__.startswith("unisono."):
                    for name in filter(is_private, vars(base)):
                        found |= {name} if any(name in vars(c) for c in above) else set()
    assert {"_backend_update_step", "_save_model"} <= found <= known


def test_bounds_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {f"{name}{bounds}" for name, bounds in versions.SUPPORTED.items()} <= set(project["dependencies"])


FAKES = {
    "a function": ("from keras.src.backend.tensorflow import numpy; del numpy.take", "take"),
    "a class": ("from keras.src.trainers import compile_utils as c; del c.CompileLoss", "CompileLoss"),
    "a method": (
        "from keras.src.trainers.trainer import Trainer; del Trainer._symbolic_build",
        "Model._symbolic_build",
    ),
    "an attribute": (
        "from keras.src.losses.losses import LossFunctionWrapper as W\n"
        "def init(self, fn, **kwargs): self.fn = fn\n"
        "W.__init__ = init",
        "LossFunctionWrapper._fn_kwargs",
    ),
    "an overridden method": (
        "from keras.src.callbacks.progbar_logger import ProgbarLogger as P; del P._update_progbar",
        "ProgbarLogger._update_progbar",
    ),
}


# Keras is imported once; each version is a fork of that process.
PROGRAM = """
import json, os, sys
import keras

for kind, take_away in json.loads(sys.argv[1]).items():
    if os.fork():
        os.wait()
        continue
    exec(take_away)
    try:
        import unisono.compat
        said = "no error"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    print(json.dumps([kind, said]), flush=True)
    os._exit(0)
"""


@pytest.mark.long
def test_version_without_a_name_is_rejected_in_one_sentence():
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    fakes = json.dumps({kind: take_away for kind, (take_away, _) in FAKES.items()})
    command = [sys.executable, "-c", PROGRAM, fakes]
    run = subprocess.run(command, capture_output=True, text=True, env=env)
    said = dict(map(json.loads, run.stdout.splitlines()))
    assert said.keys() == FAKES.keys(), run.stderr
    for kind, (_, name) in FAKES.items():
        sentence = said[kind]
        assert sentence.startswith("ImportError: Unisono needs tensorflow>=2.20"), sentence
        assert name in sentence and sentence.endswith("install supported versions.")
        assert sentence.count(". ") == 0


def test_installed_versions_have_every_name():
    assert unisono and versions.find_missing_attributes() == []
