"""The check at import covers every private name, and rejects a version that lacks one with a one-sentence error."""

import ast
import functools
import importlib
import importlib.metadata
import json
import os
import pathlib
import pkgutil
import subprocess
import sys
import tomllib

import keras
import pytest
from tensorflow.python.ops import cond

import unisono
from tests.signatures import list_uses
from unisono.commands import doctor
from unisono.compat import upstream, versions
from unisono.compat import upstream_places as places

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
    known = {name.rpartition(".")[2] for name in upstream.read_forms()}
    assert list_uses() <= upstream.read_forms().keys()
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


def test_every_name_of_the_tables_is_used_by_a_file():
    assert [name for name in upstream.list_names() if not upstream.find_files(name)] == []
    owners = {name.partition(".")[0] for name in upstream.read_forms() if ":" not in name}
    assert owners == places.PART_OF.keys()


def test_error_says_what_is_needed_what_was_found_and_what_it_lacks(monkeypatch):
    monkeypatch.setattr(keras, "__version__", "3.99")
    wanted, _, found = versions.describe_unsupported("`Layer.x`", "A part").partition(", but found ")
    assert wanted == "A part needs " + " and ".join(f"{n}{b}" for n, b in versions.SUPPORTED.items())
    assert found.startswith("tensorflow 2.") and "and keras 3.99, which lack `Layer.x`: install" in found


def test_bounds_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {f"{name}{bounds}" for name, bounds in versions.SUPPORTED.items()} <= set(project["dependencies"])


ESSENTIAL = {
    "a function": (
        "from unisono.compat.upstream_places import backend_nn as n; del n._compute_moments_sync",
        "backend_nn",
    ),
    "a class": ("from keras.src.trainers import compile_utils as c; del c.CompileLoss", "CompileLoss"),
    "a method": (
        "from unisono.compat.upstream_places import KerasTrainer; del KerasTrainer._symbolic_build",
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
LACKING_SERVERS = """
from tensorflow.python.distribute import sharded_variable as s; del s.ShardedVariable
from tensorflow.python.distribute.coordinator import cluster_coordinator as c; del c.ClusterCoordinator
keras.callbacks.ModelCheckpoint._get_file_path = None; del keras.callbacks.ModelCheckpoint._get_file_path
"""
FAKES = {
    **{kind: (take_away, "import unisono.optimizers") for kind, (take_away, _) in ESSENTIAL.items()},
    "servers": (LACKING_SERVERS, "import unisono; unisono.distribute.ParameterServerStrategy()"),
    "a checkpoint": (LACKING_SERVERS, "import unisono; unisono.callbacks.ModelCheckpoint('x.keras')"),
    "a part that is not used": (
        LACKING_SERVERS,
        "import unisono, numpy as np; x = np.ones((4, 2)); model = unisono.Sequential([keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse', run_eagerly=True); model.fit(x, x[:, :1], verbose=0)",
    ),
}


# Keras is imported once; each version is a fork of that process.
PROGRAM = """
import json, os, sys
import keras

for kind, (take_away, use) in json.loads(sys.argv[1]).items():
    if os.fork():
        os.wait()
        continue
    exec(take_away)
    try:
        exec(use)
        said = "no error"
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    print(json.dumps([kind, said]), flush=True)
    os._exit(0)
"""


@pytest.mark.long
def test_version_without_a_name_is_rejected_in_one_sentence_by_what_needs_it():
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", PROGRAM, json.dumps(FAKES)]
    run = subprocess.run(command, capture_output=True, text=True, env=env)
    said = dict(map(json.loads, run.stdout.splitlines()))
    assert said.keys() == FAKES.keys(), run.stderr
    assert said.pop("a part that is not used") == "no error"
    parts = {"servers": ("Training on parameter servers", "ShardedVariable")}
    parts["a checkpoint"] = "`ModelCheckpoint`", "_get_file_path"
    parts |= {kind: ("Unisono", name) for kind, (_, name) in ESSENTIAL.items()}
    for kind, (part, name) in parts.items():
        sentence = said[kind]
        assert sentence.startswith(f"ImportError: {part} needs tensorflow>=2.20"), sentence
        assert name in sentence and sentence.endswith("install supported versions.")
        assert sentence.count(". ") == 0


def test_installed_versions_have_every_name_in_a_form_that_was_tested():
    assert unisono and upstream.find_missing() == ()
    assert list(upstream.find_changes()) == []


def test_name_that_was_removed_moved_or_changed_is_reported_with_the_file_that_uses_it(monkeypatch, capsys):
    def one_more(self, inputs, training):
        return inputs

    monkeypatch.delattr(keras.src.utils.python_utils, "pythonify_logs")  # moved
    monkeypatch.setattr(keras.src.utils.io_utils, "pythonify_logs", len, raising=False)
    for owner in (places.TFOptimizer, places.BaseOptimizer):
        monkeypatch.delattr(owner, "_var_key")  # removed
    monkeypatch.setattr(places.Functional, "_standardize_inputs", one_more)  # another signature
    monkeypatch.setattr(keras.src.trainers.compile_utils, "MetricsList", lambda *_: None)  # was a class
    for name in ("pythonify_logs", "MetricsList"):
        monkeypatch.delitem(vars(places), name, raising=False)
    assert doctor.main(["--upstream"]) == 1
    lines = capsys.readouterr().out.splitlines()
    found = {
        line.split()[2]: f"{line} {lines[number + 1]}"
        for number, line in enumerate(lines)
        if line[1:2] == "!"
    }
    expected = {
        "pythonify_logs": ("missing; other places: ", "keras.src.utils.io_utils", "trainer/run/passes.py"),
        "keras:optimizers.Optimizer._var_key": (
            "missing; other places: ",
            "compat/keras_private/optimizers.py",
        ),
        "Functional._standardize_inputs": (
            "function (self, inputs, training)",
            "compat/keras_private/functional.py",
        ),
        "MetricsList": ("function (*_)", "trainer/step/global_metrics.py"),
    }
    assert found.keys() == expected.keys()
    for name, parts in expected.items():
        assert all(part in found[name] for part in parts), found[name]


class Finder:
    """Lets the import of a module fail."""

    def __init__(self, module, error):
        self.module, self.error = module, error

    def find_spec(self, name, path=None, target=None):
        if name == self.module:
            raise self.error


def break_module(monkeypatch, module, error):
    monkeypatch.setattr(sys, "meta_path", [Finder(module, error), *sys.meta_path])
    monkeypatch.delitem(sys.modules, module)
    parent, _, name = module.rpartition(".")
    if parent:
        monkeypatch.delattr(sys.modules[parent], name)
    for name in vars(places).keys() & places.PART_OF.keys():
        monkeypatch.delitem(vars(places), name)


class Raises:
    def __get__(self, *_):
        raise RuntimeError("not to be read")


class Odd(type):
    def __getattribute__(cls, name):
        raise KeyError(name)


@pytest.mark.parametrize(
    ("module", "error", "said"),
    [
        ("keras", TypeError("a bug"), "keras cannot be imported: TypeError('a bug')"),
        (
            "keras.src.trainers.compile_utils",
            ModuleNotFoundError("No module named 'absent'", name="absent"),
            "CompileLoss missing, ModuleNotFoundError(\"No module named 'absent'\"); other places: ",
        ),
        (
            "tensorflow.python.distribute.sharded_variable",
            ModuleNotFoundError("gone", name="tensorflow.python.distribute.sharded_variable"),
            "ShardedVariable missing; other places: ",
        ),
        ("keras.src.models.cloning", SyntaxError("a bug"), "cloning missing, SyntaxError('a bug'); other"),
    ],
)
def test_probe_reports_a_module_that_is_missing_or_fails(module, error, said, monkeypatch, capsys):
    break_module(monkeypatch, module, error)
    assert doctor.main(["--upstream"]) == 1
    assert said in " ".join(capsys.readouterr().out.split())


def test_probe_reports_objects_that_cannot_be_compared(monkeypatch, capsys):
    monkeypatch.setattr(cond, "cond", functools.partial(len))
    monkeypatch.setattr(keras.losses.Loss, "__call__", Raises())
    monkeypatch.setattr(keras.src.trainers.compile_utils, "MetricsList", Odd("MetricsList", (), {}))
    monkeypatch.delitem(vars(places), "MetricsList", raising=False)
    monkeypatch.setattr(keras, "__version__", None)
    assert doctor.main(["--upstream"]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "cond_module.cond function" in said
    assert "Loss.__call__ missing" in said and "MetricsList not comparable: KeyError" in said


@pytest.mark.parametrize("content", [None, b"\xff"])
@pytest.mark.parametrize("table", ["signatures.txt", "upstream_places.txt"])
def test_probe_says_that_a_table_cannot_be_read(table, content, tmp_path, monkeypatch, capsys):
    original = pathlib.Path.read_text
    if content:
        (tmp_path / table).write_bytes(content)
    monkeypatch.setattr(
        pathlib.Path, "read_text", lambda path: original(tmp_path / table if path.name == table else path)
    )
    for name in ("upstream", "upstream_places"):
        monkeypatch.delitem(sys.modules, f"unisono.compat.{name}")
        monkeypatch.setattr(unisono.compat, name, getattr(unisono.compat, name))  # puts it back
    assert doctor.main(["--upstream"]) == 1
    assert " cannot be read: " in capsys.readouterr().out


def test_missing_name_raises_its_error_where_it_is_used(monkeypatch):
    monkeypatch.setitem(places.PART_OF, "gone", "Training on GPUs")
    gone = places.gone

    class Made(gone):
        pass

    for use in (
        lambda: gone.attribute,
        lambda: gone(1),
        lambda: list(gone),
        lambda: gone[0],
        lambda: vars(gone),
        lambda: Made(),
    ):
        with pytest.raises(
            ImportError, match=r"^Training on GPUs needs tensorflow.* which lack gone: install"
        ):
            use()
    assert not isinstance(1, gone) and isinstance(1, gone | int) and not isinstance(1, str | gone)
    with pytest.raises(AttributeError, match="never_there"):
        places.never_there  # noqa: B018


def test_versions_of_nightly_builds_are_found_and_shown(monkeypatch):
    known = {"keras-nightly": "3.16.dev1", "tf-nightly": "2.23.dev2", "other-nightly": "1"}

    def version(name):
        if name in known:
            return known[name]
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    for name in ("keras", "tensorflow"):
        monkeypatch.delitem(sys.modules, name)
    assert [versions.find_version(name) for name in ("keras", "tensorflow", "other", "none")] == [
        "3.16.dev1",
        "2.23.dev2",
        "1",
        "not installed",
    ]
    python = ".".join(map(str, sys.version_info[:2]))
    shown = f"Unisono {unisono.__version__}, Keras 3.16.dev1, TensorFlow 2.23.dev2, Python {python}"
    assert versions.show_versions() == shown
    assert versions.describe_unsupported("`a.b`", "A pipeline") == (
        f"A pipeline needs tensorflow{versions.SUPPORTED['tensorflow']} and keras{versions.SUPPORTED['keras']}, but found "
        "tensorflow 2.23.dev2 and keras 3.16.dev1, which lack `a.b`: install supported versions."
    )
