"""Unisono installed from a wheel, and editable, is complete for Python and type checkers, also inside its clone."""

import collections
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FOLDERS = (
    "unisono",
    "trainer",
    "callbacks",
    "state",
    "mixed_precision",
    "optimizers",
    "distribute",
    "compat",
)
PROGRAM = HERE / "typed_program.py"
NOT_OURS = ("PYTHONPATH", "TF_CONFIG")  # imports must find the installed package
pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("pyright"), reason="needs pyright: pip install '.[dev]'"),
]


def run(*command, folder, status=0):
    environment = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
    command = list(map(str, command))
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """The files of the package as in a clone, including links, under a name that no other copy has."""
    folder = tmp_path_factory.mktemp("clone")
    ignore = shutil.ignore_patterns("__pycache__")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    with (folder / "unisono" / "__init__.py").open("a", encoding="utf-8") as file:
        file.write("\ninstalled_here = True\n")
    return folder


@pytest.fixture(scope="module")
def released(clone, tmp_path_factory):
    """The folder with the sdist, and the wheel built from it."""
    pytest.importorskip("build", reason="needs build: pip install '.[dev]'")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, folder=clone)
    return folder


def installed(folder, *what):
    """The Python of a fresh virtual environment with `what`; other packages come from this process's environment."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    offline = ("--no-deps", "--no-index", "--no-build-isolation", "--quiet", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", f"--python={python}", "install", *offline, *what, folder=folder)
    return python


# Installations are expensive: one test for each kind checks everything.


@pytest.mark.long
def test_editable_installation_is_whole_for_python_and_type_checkers(clone, tmp_path):
    python = installed(tmp_path / "environment", "--editable", clone)
    check_types(python, tmp_path)
    check_programs(python, clone, tmp_path)


def test_wheel_and_sdist_are_whole(clone, released):
    check_archives(clone, released)


@pytest.mark.long
def test_wheel_is_whole_for_python_and_type_checkers(clone, released, tmp_path):
    python = installed(tmp_path / "environment", *released.glob("*.whl"))
    check_types(python, tmp_path)
    check_programs(python, clone, tmp_path)


def check_archives(clone, released):
    """The sdist and the wheel contain every module once."""
    files = (path for name in FOLDERS for path in (clone / name).rglob("*"))
    inside = [path for path in files if path.suffix in (".py", ".pyi", ".html", ".txt")]
    own = [path.relative_to(clone).as_posix().removeprefix("unisono/") for path in inside]
    expected = collections.Counter(f"unisono/{name}" for name in (*own, "py.typed"))
    with zipfile.ZipFile(next(released.glob("*.whl"))) as wheel:
        assert collections.Counter(n for n in wheel.namelist() if ".dist-info/" not in n) == expected
    with tarfile.open(next(released.glob("*.tar.gz"))) as sdist:
        names = [name.partition("/")[2] for name in sdist.getnames()]
    assert (
        collections.Counter(n for n in names if re.search(r"^unisono/.*\.txt$|\.(pyi?|html)$|py\.typed$", n))
        == expected
    )


def errors_expected():
    """line -> part of the expected message, from the comments of `PROGRAM`."""
    lines = enumerate(PROGRAM.read_text(encoding="utf-8").splitlines())
    marked = {number: line.partition("# error: ")[2] for number, line in lines}
    return {number: said.partition("  #")[0] for number, said in marked.items() if said}


def check_types(python, tmp_path):
    """A type checker resolves every name that a program uses."""
    shutil.copy(PROGRAM, tmp_path)
    check = (sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", python, PROGRAM.name)
    found = json.loads(run(*check, folder=tmp_path, status=1))["generalDiagnostics"]
    reported = {each["range"]["start"]["line"]: each["message"] for each in found}
    expected = errors_expected()
    assert len(expected) > 7 and set(reported) == set(expected), reported
    assert not [(said, reported[line]) for line, said in expected.items() if said not in reported[line]]


def check_programs(python, clone, tmp_path):
    """A program and a command run inside and outside the clone."""
    program = """
import importlib.util
import sys

import unisono
import unisono.commands

print(unisono.installed_here, unisono.commands.COMMANDS)
for name in ("unisono.distribute", "unisono.trainer", "unisono.callbacks"):
    assert importlib.util.find_spec(name), name
if len(sys.argv) > 1:  # this loads TensorFlow
    print(unisono.Model, unisono.optimizers.Adam, unisono.distribute)
"""
    for folder, more in ((clone, ["all"]), (tmp_path, [])):
        (folder / "program.py").write_text(program)
        said = run(python, "program.py", *more, folder=folder)
        assert said.startswith("True ") and ("<module 'unisono.distribute' from" in said) == bool(more)
        help_text = run(python, "-m", "unisono", "doctor", "--help", folder=folder)
        assert "usage: python -m unisono doctor" in help_text
