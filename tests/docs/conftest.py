"""What tests of the documentation share."""

import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def program_of_ci():
    """`program_of_ci(name)`: the module of a program in `.ci`, which is no package."""

    def load(name):
        spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
