"""Keras' own tests of its trainer hold for ours: their example models are given our `Trainer` instead of Keras'."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys
import unittest
import warnings
from typing import Any
from unittest import mock

import pytest
from keras.src.backend.tensorflow import trainer as keras_trainer

from unisono.trainer.trainer import Trainer

NAME = "keras.src.trainers.trainer_test"

# What needs another framework, processes of its own, or changes TensorFlow for every test that follows.
ELSEWHERE = "jax|torch|grain|multiprocessing|determinism"
# Keras runs whole executions, six steps in an epoch of five; ours stop where the epoch does.
DELIBERATE = "steps_per_execution_steps_per_epoch_match_multi_epoch"
# Other sizes, or other ways of running, of a case that stays.
REPEATED = (
    "_101_|_50_|non_jit|_jit$|unrolled_steps_steps_count_(3|8)|_unknown_data_size_match|py_dataset_(inf|mult)"
)

GROUPS = {
    "fit": "test_fit_",
    "evaluate": "test_evaluate_",
    "predict": "test_predict_",
    "steps_per_epoch": "test_steps_per_epoch_",
    "steps_per_execution": "test_steps_per_execution_",
    "the rest": "",
}


class OurTrainer(Trainer, keras_trainer.TensorFlowTrainer):
    """In place of Keras' trainer for TensorFlow."""


@pytest.fixture(scope="module")
def theirs(request):
    """Keras' test case, with our trainer."""
    spec = importlib.util.find_spec(NAME)
    if spec is None or spec.origin is None:
        pytest.skip("this Keras is installed without its tests")
    for mark in set(re.findall(r"pytest\.mark\.(\w+)", pathlib.Path(spec.origin).read_text())):
        request.config.addinivalue_line("markers", f"{mark}: of Keras' own tests")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras_trainer, "TensorFlowTrainer", OurTrainer)
        try:
            import jax as _  # noqa: F401
        except ImportError:
            patch.setitem(sys.modules, "jax", mock.MagicMock())
        patch.delitem(sys.modules, NAME, raising=False)
        try:
            module = importlib.import_module(NAME)
        except ImportError as error:
            pytest.skip(f"Keras' tests need what is not installed: {error}")
        yield module.TestTrainer
        sys.modules.pop(NAME, None)


def is_skipped(test: Any) -> bool:
    """Whether pytest would skip the test, by its marks, which `unittest` does not know."""
    marks = getattr(test, "pytestmark", [])
    return any(mark.name == "skip" or (mark.name == "skipif" and mark.args[0]) for mark in marks)


def chosen(case: type, group: str) -> list[str]:
    names = unittest.defaultTestLoader.getTestCaseNames(case)
    others = [prefix for prefix in GROUPS.values() if prefix and prefix != group]
    return [
        name
        for name in names
        if name.startswith(group or "test_")
        and (group or not name.startswith(tuple(others)))
        and not re.search(f"{ELSEWHERE}|{DELIBERATE}|{REPEATED}", name)
        and not is_skipped(getattr(case, name))
    ]


@pytest.mark.parametrize("group", GROUPS)
def test_keras_own_tests_hold(group, theirs):
    names = chosen(theirs, GROUPS[group])
    assert len(names) >= 4, f"Keras renamed its tests: of the group {group!r} only {names} are left"
    result = unittest.TestResult()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        unittest.TestSuite(theirs(name) for name in names).run(result)
    problems = [f"{test}\n{text}" for test, text in result.failures + result.errors]
    assert not problems, "\n".join(problems)
    assert result.testsRun == len(names)
