"""Keras' own tests, from the installed package, with our classes instead of Keras'."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import pkgutil
import sys
import types
import unittest
import warnings
from collections.abc import Iterator
from typing import Any
from unittest import mock

import keras
import pytest
from keras.src import saving

import unisono
from unisono.compat.keras_private.serialization import our_classes
from unisono.compat.upstream_places import TensorFlowTrainer
from unisono.trainer.trainer import Trainer


class OurTrainer(Trainer, TensorFlowTrainer):
    """Replaces Keras' trainer for TensorFlow."""


_REPLACEABLE = (type, types.FunctionType)


def _replacements() -> dict[Any, Any]:
    """The replacement of each public class or function of Keras: ours with the same name."""
    found: dict[Any, Any] = {TensorFlowTrainer: OurTrainer}
    for theirs, ours in (
        (keras, unisono),
        (keras.callbacks, unisono.callbacks),
        (keras.optimizers, unisono.optimizers),
    ):
        for name, value in vars(theirs).items():
            if isinstance(value, _REPLACEABLE) and hasattr(ours, name):
                found[value] = getattr(ours, name)
    return found


REPLACEMENTS = _replacements()


class _Namespace(types.ModuleType):
    """A module of Keras in which our names hide those of Keras."""

    def __init__(self, module: types.ModuleType) -> None:
        super().__init__(module.__name__)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._module, name)
        if isinstance(value, types.ModuleType) and value.__name__.startswith("keras."):
            return _Namespace(value)
        return REPLACEMENTS.get(value, value) if isinstance(value, _REPLACEABLE) else value


@contextlib.contextmanager
def _ours_in_keras() -> Iterator[None]:
    """While entered, imports from Keras give our objects, including base classes of the tests' custom classes."""
    with pytest.MonkeyPatch.context() as patch:
        for module in [m for name, m in sys.modules.items() if name.startswith("keras.src.")]:
            for name, value in list(vars(module).items()):
                if isinstance(value, _REPLACEABLE) and value in REPLACEMENTS:
                    patch.setattr(module, name, REPLACEMENTS[value])
        yield


def _conftest() -> types.ModuleType:
    """Replaces the `conftest` of Keras' repository, which Keras' tests import and which is not installed."""
    module = types.ModuleType("conftest")

    def skip_if_backend(backend: str, reason: str) -> Any:
        return pytest.mark.skipif(backend == keras.backend.backend(), reason=reason)

    vars(module)["skip_if_backend"] = skip_if_backend
    return module


def modules(packages: list[str]) -> list[str]:
    """The test modules of packages of Keras."""
    return [
        f"{package}.{module.name}"
        for package in packages
        for module in pkgutil.iter_modules(importlib.import_module(package).__path__)
        if module.name.endswith("_test")
    ]


def cases(name: str) -> list[type[unittest.TestCase]]:
    """The test cases of Keras' test module `name`, with our classes; none if Keras is installed without its tests."""
    if importlib.util.find_spec(name) is None:
        return []
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "conftest", _conftest())
        if importlib.util.find_spec("jax") is None:
            patch.setitem(sys.modules, "jax", mock.MagicMock())
        sys.modules.pop(name, None)
        with _ours_in_keras():
            module = importlib.import_module(name)
        sys.modules.pop(name)
    for key, value in list(vars(module).items()):
        if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] == "keras":
            setattr(module, key, _Namespace(value))
    found = [v for v in vars(module).values() if isinstance(v, type) and issubclass(v, unittest.TestCase)]
    return [case for case in found if case.__module__ == name]


def _is_skipped(test: Any) -> bool:
    """Whether pytest would skip the test because of its marks, which `unittest` ignores."""
    marks = getattr(test, "pytestmark", [])
    return any(mark.name == "skip" or (mark.name == "skipif" and mark.args[0]) for mark in marks)


def names_in(case: type[unittest.TestCase]) -> list[str]:
    """The names of the tests of `case` that pytest would run here."""
    if _is_skipped(case):
        return []
    every = unittest.defaultTestLoader.getTestCaseNames(case)
    return [name for name in every if not _is_skipped(getattr(case, name))]


class _Result(unittest.TestResult):
    """Counts as skipped the tests that pytest skips, and those that need a package that is not installed."""

    def addError(self, test: Any, err: Any) -> None:
        if isinstance(err[1], pytest.skip.Exception | ImportError):
            self.addSkip(test, str(err[1]))
        else:
            super().addError(test, err)


def _deserialized(original: Any) -> Any:
    """Keras' `deserialize_keras_object` creates Keras' optimizers from our configs; this one converts them to ours."""

    def deserialize(config: Any, *args: Any, **kwargs: Any) -> Any:
        with our_classes():
            found = original(config, *args, **kwargs)
        return unisono.optimizers.adopt(found) if isinstance(found, keras.optimizers.Optimizer) else found

    return deserialize


def run(tests: list[unittest.TestCase]) -> unittest.TestResult:
    """Runs the tests."""
    result = _Result()
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setattr(saving, "deserialize_keras_object", _deserialized(saving.deserialize_keras_object))
        unittest.TestSuite(tests).run(result)
    return result
