"""The reference lists exactly the public names, under their public paths."""

import doctest
import importlib
import pathlib
import re
import warnings

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
    "unisono.optimizers.schedules.scaled": "unisono.optimizers.schedules",
    "unisono.optimizers.schedules.ScaledSchedule": "unisono.optimizers.schedules",
}
# Results, errors and warnings that the docstring of the function shows which returns, raises or gives them.
SHOWN_BY = {
    "callbacks.BackupAndRestore": "callbacks.BackupMismatchError",
    "callbacks.latest_backup": "callbacks.BackupInfo",
    "callbacks.read_backup": "callbacks.NewerFormatError",
    "distribute.ParameterServerStrategy": "distribute.ParameterServerError",
    "distribute.Pipeline": "distribute.StageError",
    "mixed_precision.check_progress": "mixed_precision.LossScaleError",
    "mixed_precision.diagnose": "mixed_precision.Diagnosis mixed_precision.NonFinite",
    "optimizers.serialize": "optimizers.deserialize",
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


def values():
    for name in sorted(set().union(*map(public_names, PACKAGES))):
        yield name, getattr(importlib.import_module(name.rpartition(".")[0]), name.rpartition(".")[2])


def ours(value):
    """Whether a public name is documented here, and not by Keras or TensorFlow."""
    here = getattr(value, "__module__", "").startswith("unisono.")
    return here or value is unisono.optimizers.LossScaleOptimizer  # saved under Keras' name


def test_every_public_name_has_an_example_or_is_in_the_docstring_of_another():
    texts = {name.partition(".")[2]: value.__doc__ or "" for name, value in values() if ours(value)}
    shown = {name for other, names in SHOWN_BY.items() for name in names.split() if ">>> " in texts[other]}
    assert {name for name, text in texts.items() if ">>> " not in text} == shown
    for other, names in SHOWN_BY.items():
        assert [name for name in names.split() if name.rpartition(".")[2] not in texts[other]] == []


def test_docstrings_of_optimizers_have_our_arguments_and_one_example():
    for name in ("Adam", "RMSprop", "ScheduleFreeAdamW"):
        text = getattr(unisono.optimizers, name).__doc__
        assert text.count("\nArgs:\n    gradient_transformers: ") == text.count("Example") == 1


def test_examples_of_docstrings_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = unisono.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(unisono.optimizers.Adam(1e-3), "mse")
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    backup = unisono.callbacks.BackupAndRestore("run", delete_when_done=False)
    model.fit(x, x[:, :1], epochs=2, verbose=0, callbacks=[backup])
    (tmp_path / "damaged.unisono").write_bytes(b"damaged")
    reader = {"keras": keras, "np": np, "tf": tf, "unisono": unisono, "model": model, "x": x, "y": x[:, :1]}
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL
    runner, found = doctest.DocTestRunner(optionflags=flags), doctest.DocTestFinder(recurse=False)
    for name, value in values():
        if ours(value):
            module = vars(importlib.import_module(value.__module__))
            for example in found.find(value, name, globs=module | reader):
                with warnings.catch_warnings():
                    runner.run(example)
    assert runner.tries > 100 and runner.failures == 0
