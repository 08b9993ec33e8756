"""Odd uses that plain Keras takes are taken, before and after the first step."""

from __future__ import annotations

import warnings

import keras
import pytest
from uses.bench import Bench
from uses.right import BOTH, OURS

import unisono


def errors_of(uses, namespace, folder):
    """The names of the uses that fail, with their errors."""
    bench, failures = Bench(namespace, folder), {}
    for name, use in uses.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                use(bench)
        except Exception as error:
            failures[name] = f"{type(error).__name__}: {error}"
    return failures


CASES = {"ours": (BOTH, unisono), "Keras": (BOTH, keras), "ours alone": (OURS, unisono)}


# That plain Keras takes them says something of the table, and changes with Keras alone.
@pytest.mark.short("ours*")
@pytest.mark.parametrize("case", CASES)
def test_right_uses_work(case, tmp_path):
    failures = errors_of(*CASES[case], tmp_path)
    assert not failures, "\n".join(f"{name}: {error}" for name, error in failures.items())
