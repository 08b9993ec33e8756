"""Keras' tests of trainer, callbacks and optimizers pass with Unisono, with few exceptions; `make keras-tests` runs all."""

from __future__ import annotations

import importlib.util
import pathlib
import re

import pytest

from keras_own.expected import ALONE, CANNOT_HOLD, IN_THE_LONG_RUN, PACKAGES, TRAINER
from keras_own.substitution import cases, modules, names_in, run

# The groups of trainer tests by name prefix, and packages.
GROUPS = {
    "fit": "test_fit_",
    "evaluate": "test_evaluate_",
    "predict": "test_predict_",
    "steps_per_epoch": "test_steps_per_epoch_",
    "steps_per_execution": "test_steps_per_execution_",
    "the rest": "test_(?!fit_|evaluate_|predict_|steps_per_ep|steps_per_ex)",
}
NEEDS_JAX = "$^" if importlib.util.find_spec("jax") else "_jax"


@pytest.fixture
def theirs(request):
    """Gives the test cases from Keras' test modules, with Unisono's classes, and registers their marks."""

    def found(names):
        for spec in filter(None, map(importlib.util.find_spec, names)):
            for mark in set(re.findall(r"pytest\.mark\.(\w+)", pathlib.Path(str(spec.origin)).read_text())):
                request.config.addinivalue_line("markers", f"{mark}: of Keras' own tests")
        cases_found = [case for name in names for case in cases(name)]
        if not cases_found:
            pytest.skip("this Keras is installed without its tests")
        return cases_found

    return found


def hold(cases_found, beginning, least):
    """Runs the tests with this prefix, except those that cannot pass and those that only the long run contains."""
    chosen = [
        case(name)
        for case in cases_found
        for name in names_in(case)
        if re.match(beginning, name)
        and not re.search(f"{IN_THE_LONG_RUN}|{NEEDS_JAX}", name)
        and not f"{case.__name__}.{name}".startswith(tuple(CANNOT_HOLD))
    ]
    assert len(chosen) >= least, f"Keras renamed its tests: only {len(chosen)} are left"
    result = run(chosen)
    problems = [f"{test}\n{text}" for test, text in result.failures + result.errors]
    assert not problems, "\n".join(problems)


@pytest.mark.short("predict", "evaluate")
@pytest.mark.parametrize("group", GROUPS)
def test_keras_own_tests_of_the_trainer_hold(group, theirs):
    hold(theirs([TRAINER]), GROUPS[group], 4)


@pytest.mark.short("keras.src.optimizers.schedules-30")
@pytest.mark.parametrize(("package", "least"), [(PACKAGES[0], 50), (PACKAGES[1], 200), (PACKAGES[2], 30)])
def test_keras_own_tests_of_a_package_hold(package, least, theirs):
    hold(theirs([name for name in modules([package]) if name not in ALONE]), "test_", least)


def test_no_more_than_eight_of_keras_own_tests_cannot_hold():
    assert len(CANNOT_HOLD) <= 8
    assert all(reason.endswith(".") for reason in CANNOT_HOLD.values())
