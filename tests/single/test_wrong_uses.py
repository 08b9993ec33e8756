"""Invalid uses raise before the first step, in one line with the argument, the value and the fix."""

from __future__ import annotations

import re
import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from uses.bench import Bench, X
from uses.wrong_callbacks import PLACES, SETTINGS
from uses.wrong_compile import COMPILE, MODELS
from uses.wrong_data import DATA, STEPS
from uses.wrong_distribution import COMMANDS, ENVIRONMENT, PIPELINES, PRECISION, STRATEGIES
from uses.wrong_fit import ARGUMENTS, INPUTS, METHODS
from uses.wrong_optimizers import OPTIMIZERS, PIECES

import unisono
from unisono.commands import main

TABLES = {
    "inputs": INPUTS,
    "arguments": ARGUMENTS,
    "methods": METHODS,
    "data": DATA,
    "steps": STEPS,
    "compile": COMPILE,
    "models": MODELS,
    "optimizers": OPTIMIZERS,
    "pieces": PIECES,
    "places": PLACES,
    "settings": SETTINGS,
    "strategies": STRATEGIES,
    "pipelines": PIPELINES,
    "precision": PRECISION,
    "environment": ENVIRONMENT,
}
LONGEST = 700  # characters in a message, paths and shapes included


@pytest.fixture(scope="module")
def steps():
    """A list with an entry for every update of any model in this file."""
    made: list[Any] = []

    def counted(update: Any) -> Any:
        return lambda *args, **kwargs: (made.append(args), update(*args, **kwargs))[1]

    with pytest.MonkeyPatch.context() as patch:
        for cls in vars(keras.optimizers).values():
            if isinstance(cls, type) and "update_step" in vars(cls):
                patch.setattr(cls, "update_step", counted(cls.update_step))
        yield made


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    return Bench(unisono, tmp_path_factory.mktemp("bench"))


def complaint(error: BaseException, words: tuple[str, ...]) -> str | None:
    """Describes what is wrong with an error message."""
    text = str(error)
    if "\n" in text or len(text) > LONGEST:
        return "is not one line of reasonable length"
    missing = [word for word in words if not re.search(word, text)]
    return f"lacks {missing}" if missing else None


@pytest.mark.parametrize("table", TABLES)
def test_wrong_uses_are_rejected_in_one_line_before_the_first_step(table, bench, steps):
    failures, before = [], [np.array(value) for value in bench.model.get_weights()]
    for name, (use, words) in TABLES[table].items():
        steps.clear()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                use(bench)
        except (ValueError, TypeError, OSError, RuntimeError) as error:
            said = complaint(error, words)
            if said:
                failures.append(f"{name}: {said}: {type(error).__name__}: {error}")
        except Exception as error:
            failures.append(f"{name}: a raw error: {type(error).__name__}: {error}")
        else:
            failures.append(f"{name}: is accepted")
        if steps:
            failures.append(f"{name}: {len(steps)} updates were made before")
            bench.model.set_weights(before)
    keras.config.set_dtype_policy("float32")
    assert not failures, f"{len(failures)} of {len(TABLES[table])}:\n" + "\n".join(failures)
    for old, new in zip(before, bench.model.get_weights()):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("argument", ["metrics", "weighted_metrics"])
def test_metrics_of_another_name_than_that_of_the_one_output_are_warned_of(argument, bench):
    with pytest.warns(UserWarning, match=f"`{argument}` names the output 'nope'.* give 'out'"):
        bench.new(**{argument: {"nope": ["mae"]}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bench.new(**{argument: {"out": ["mae"]}})


def test_labels_of_validation_batches_are_rejected_by_the_name_of_the_argument(bench):
    model = bench.new(loss="sparse_categorical_crossentropy")
    data = tf.data.Dataset.from_tensors((X, np.full(6, 7)))
    with pytest.raises(ValueError, match=r"^`validation_data`: `y` holds the label 7.* from 0 to 1"):
        model.fit(X, np.zeros(6), validation_data=data, verbose=0)


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_commands_say_what_is_wrong(name, capsys):
    arguments, words = COMMANDS[name]
    try:
        status = main(arguments)
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr().err
    assert status not in (0, None)
    assert "Traceback" not in said
    for word in words:
        assert re.search(word, said), said


def test_the_tables_hold_three_hundred_uses():
    assert sum(map(len, TABLES.values())) + len(COMMANDS) >= 300
