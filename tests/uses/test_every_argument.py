"""Every argument of every public function rejects invalid values before the first step; the error contains its name."""

from __future__ import annotations

import re
import warnings
from typing import Any

import keras
import pytest

import unisono
from unisono import callbacks
from uses.bench import Bench
from uses.every_argument import NOT_HERE, UNCHECKED, Subject, arguments_of, subjects
from uses.values import KINDS, VALUES

ERRORS = (ValueError, TypeError, OSError, RuntimeError)
LONGEST = 700  # characters in a message


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return subjects(Bench(unisono, tmp_path_factory.mktemp("place")))


def outcome(subject: Subject, function: Any, argument: str, value: Any) -> str:
    """ "taken" or "rejected", or a description of a bad error message."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            function(**{**subject.right, argument: value})
    except Exception as error:
        text = str(error)
        missing_file = isinstance(error, OSError | callbacks.DamagedFileError) and "nope" in text
        names_it = re.search(rf"\b{argument}\b", text) or missing_file
        names_it = names_it and "\n" not in text and len(text) <= LONGEST
        named = names_it and isinstance(error, ERRORS)
        return "rejected" if named else f"{type(error).__name__}: {text[:300]}"
    return "taken"


def is_inherited(name: str, argument: str, table: dict[str, Subject]) -> bool:
    """Whether an optimizer has an argument from the base class of all, as Adam has it."""
    return name != "Adam" and hasattr(unisono.optimizers, name) and argument in table["Adam"].takes


@pytest.mark.short("False")
@pytest.mark.parametrize("inherited", [False, True])
def test_every_value_means_what_the_table_says(table, monkeypatch, tmp_path, capsys, inherited):
    monkeypatch.chdir(tmp_path)
    wrong = []
    for name, subject in table.items():
        for argument, kind in subject.takes.items():
            if is_inherited(name, argument, table) != inherited:
                continue
            for label, value in VALUES.items():
                if (argument, label) in (
                    ("epochs", "10**30"),
                    ("return_dict", "array"),
                ):  # lasts; NumPy's own wording
                    continue
                expected = "taken" if label in KINDS[kind] else "rejected"
                found = outcome(subject, subject.call, argument, value)
                if found == expected:
                    continue
                if subject.keras is None or outcome(subject, subject.keras, argument, value) != found:
                    wrong.append(f"{name}({argument}={label}): {found}, where it should be {expected}")
    keras.config.set_dtype_policy("float32")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong)


def public_names() -> dict[str, Any]:
    """The public functions and classes, without Keras' own objects, errors and modules."""
    found = {}
    for package in (
        unisono,
        unisono.callbacks,
        unisono.distribute,
        unisono.mixed_precision,
        unisono.models,
        unisono.optimizers,
    ):
        for name in package.__all__ if hasattr(package, "__all__") else dir(package):
            value = getattr(package, name)
            error = isinstance(value, type) and issubclass(value, BaseException)
            if callable(value) and not error and not value.__module__.startswith(("keras.src", "typing")):
                found[name] = value
    return found


def test_the_table_has_every_public_name(table):
    missing = sorted(set(public_names()) - set(table) - set(NOT_HERE))
    assert not missing


def test_the_table_has_every_argument(table):
    missing = [
        f"{name}.{argument}"
        for name, subject in table.items()
        for argument in arguments_of(subject.call)
        if argument not in subject.takes and argument not in UNCHECKED
    ]
    assert not missing
