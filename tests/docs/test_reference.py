"""The reference lists exactly the public names, under their public paths."""

import doctest
import importlib
import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import unisono

REFERENCE = pathlib.Path(__file__).resolve().parent.parent.parent / "docs" / "reference"
PACKAGES = ("unisono", *(f"unisono.{name}" for name in ("callbacks", "distribute", "mixed_precision")))
PACKAGES += ("unisono.models", "unisono.optimizers")
UNDER_ANOTHER_PATH = {
    "unisono.trainer.replica_step.replica_step": "unisono.replica_step",  # its module has the same name
    "unisono.trainer.finders.learning_rate.LearningRates": "unisono.find_learning_rate",  # its return type
    "unisono.optimizers.schedules.scaled": "unisono.optimizers.schedules",
    "unisono.optimizers.schedules.ScaledSchedule": "unisono.optimizers.schedules",
}


def public_names(package):
    module = importlib.import_module(package)
    return {f"{package}.{name}" for name in module.__all__ if f"{package}.{name}" not in PACKAGES}


def text_and_documented():
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(REFERENCE.glob("*.md")))
    documented = re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
    return text, [UNDER_ANOTHER_PATH.get(name, name) for name in documented]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_in_the_reference(package):
    text, documented = text_and_documented()
    mentioned = set(documented) | set(re.findall(r"`(unisono(?:\.\w+)+)`", text))
    assert sorted(public_names(package) - mentioned) == []


def test_the_reference_has_public_names_only():
    _, documented = text_and_documented()
    known = set().union(*map(public_names, PACKAGES))
    assert [name for name in documented if name not in known] == []


def test_every_name_of_the_reference_says_what_it_is():
    for package in PACKAGES:
        for name in public_names(package):
            value = getattr(importlib.import_module(package), name.rpartition(".")[2])
            assert isinstance(value, str) or value.__doc__, name


def test_examples_of_docstrings_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = unisono.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(unisono.optimizers.Adam(1e-3), "mse")
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    reader = {"keras": keras, "np": np, "tf": tf, "unisono": unisono, "model": model, "x": x, "y": x[:, :1]}
    runner, found = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS), doctest.DocTestFinder(recurse=False)
    for name in sorted(set().union(*map(public_names, PACKAGES))):
        value = getattr(importlib.import_module(name.rpartition(".")[0]), name.rpartition(".")[2])
        module = getattr(value, "__module__", "")
        if module.startswith("unisono.") and module != "unisono.optimizers":  # others have Keras' docstrings
            for example in found.find(value, name, globs=vars(importlib.import_module(module)) | reader):
                runner.run(example)
    assert runner.tries > 30 and runner.failures == 0
