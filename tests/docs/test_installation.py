"""An installed Unisono, from a wheel and editable, is whole for Python and for a type checker, also in its own clone."""

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
FOLDERS = ("unisono", "trainer", "callbacks", "mixed_precision", "optimizers", "distribute", "compat")
PROGRAM = HERE / "typed_program.py"
NOT_OURS = ("PYTHONPATH", "TF_CONFIG")  # an import must find what is installed
pytestmark = [pytest.mark.process, pytest.mark.slow]


def run(*command, folder, status=0):
    environment = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
    command = list(map(str, command))
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == status, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """The files of the package as a clone has them, links included, with a name that no other copy has."""
    folder = tmp_path_factory.mktemp("clone")
    for name in FOLDERS:
        shutil.copytree(
            ROOT / name, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    with (folder / "unisono" / "__init__.py").open("a", encoding="utf-8") as file:
        file.write("\ninstalled_here = True\n")
    return folder


@pytest.fixture(scope="module")
def released(clone, tmp_path_factory):
    """The folder with the sdist, and with the wheel that was built from it."""
    pytest.importorskip("build", reason="needs build: pip install '.[dev]'")
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, folder=clone)
    return folder


def installed(folder, *what):
    """The Python of a fresh virtual environment with `what`; all else it takes from the environment of this process."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    offline = ("--no-deps", "--no-index", "--no-build-isolation", "--quiet", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", f"--python={python}", "install", *offline, *what, folder=folder)
    return python


@pytest.fixture(scope="module")
def python(request, clone, released, tmp_path_factory):
    """The Python of an environment with Unisono, installed in the way that the test names."""
    what = ("--editable", clone) if request.param == "editable" else released.glob("*.whl")
    return installed(tmp_path_factory.mktemp(request.param), *what)


def test_sdist_and_wheel_hold_every_module_once(clone, released):
    inside = [
        path for name in FOLDERS for path in (clone / name).rglob("*.py*") if path.suffix in (".py", ".pyi")
    ]
    own = [path.relative_to(clone).as_posix().removeprefix("unisono/") for path in inside]
    expected = collections.Counter(f"unisono/{name}" for name in own) + collections.Counter(
        ["unisono/py.typed"]
    )
    with zipfile.ZipFile(next(released.glob("*.whl"))) as wheel:
        assert collections.Counter(n for n in wheel.namelist() if ".dist-info/" not in n) == expected
    with tarfile.open(next(released.glob("*.tar.gz"))) as sdist:
        names = [name.partition("/")[2] for name in sdist.getnames()]
    assert collections.Counter(n for n in names if re.search(r"\.pyi?$|py\.typed$", n)) == expected


both = pytest.mark.parametrize("python", ["editable", "wheel"], indirect=True)


def errors_expected():
    """Line: a part of the message, of what `PROGRAM` says in comments."""
    lines = enumerate(PROGRAM.read_text(encoding="utf-8").splitlines())
    marked = {number: line.partition("# error: ")[2] for number, line in lines}
    return {number: said.partition("  #")[0] for number, said in marked.items() if said}


@both
def test_type_checker_knows_what_a_program_uses(python, tmp_path):
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("needs pyright: pip install '.[dev]'")
    shutil.copy(PROGRAM, tmp_path)
    check = (sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", python, PROGRAM.name)
    found = json.loads(run(*check, folder=tmp_path, status=1))["generalDiagnostics"]
    reported = {each["range"]["start"]["line"]: each["message"] for each in found}
    expected = errors_expected()
    assert len(expected) > 7 and set(reported) == set(expected), reported
    assert not [(said, reported[line]) for line, said in expected.items() if said not in reported[line]]


@both
def test_program_and_command_run_in_the_clone_and_outside(python, clone, tmp_path):
    program = "import unisono\nprint(unisono.installed_here, unisono.distribute, unisono.commands.COMMANDS)\n"
    for folder in (clone, tmp_path):
        (folder / "program.py").write_text(program.replace("\n", "\nimport unisono.commands\n", 1))
        assert run(python, "program.py", folder=folder).startswith("True <module 'unisono.distribute' from")
        assert "usage: python -m unisono doctor" in run(
            python, "-m", "unisono", "doctor", "--help", folder=folder
        )
    run(python, "-c", "import unisono; unisono.Model, unisono.optimizers.Adam", folder=clone)
