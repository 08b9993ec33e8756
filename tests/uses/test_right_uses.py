"""Unusual but valid uses of Keras work in Unisono, before and after the first step."""

from __future__ import annotations

import warnings

import keras
import pytest

import unisono
from uses.bench import Bench
from uses.right import BOTH, OURS


def errors_of(uses, namespace, folder):
    """The names of the failing uses, with their errors."""
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


# The case with plain Keras tests the table itself, and changes only with Keras.
@pytest.mark.short("ours alone")
@pytest.mark.parametrize("case", CASES)
def test_right_uses_work(case, tmp_path):
    failures = errors_of(*CASES[case], tmp_path)
    assert not failures, "\n".join(f"{name}: {error}" for name, error in failures.items())
