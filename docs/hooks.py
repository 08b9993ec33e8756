"""Shows mkdocstrings the package as it is installed: the folders at the root of the repository are its subpackages."""

import pathlib
import shutil

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("trainer", "callbacks", "optimizers", "mixed_precision", "distribute")
COPY = ROOT / "build" / "docs-sources"  # as in mkdocs.yml


def on_startup(command, dirty):
    """Copies the sources into the layout of the package, for reading only."""
    shutil.rmtree(COPY, ignore_errors=True)
    only_python = shutil.ignore_patterns("__pycache__", "*.pyc")
    shutil.copytree(ROOT / "unisono", COPY / "unisono", ignore=only_python)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, COPY / "unisono" / name, ignore=only_python)


def on_shutdown():
    """Removes the copies."""
    shutil.rmtree(COPY, ignore_errors=True)
