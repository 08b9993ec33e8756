"""Invalid uses raise before the first step, in one line with the argument, the value and the fix."""

from __future__ import annotations

import re
import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import assert_equal, mirrored

import unisono
from unisono.commands import main
from uses.bench import Bench, X
from uses.wrong_callbacks import PLACES, SETTINGS
from uses.wrong_compile import COMPILE, MODELS
from uses.wrong_data import DATA, STEPS
from uses.wrong_distribution import COMMANDS, ENVIRONMENT, PIPELINES, PRECISION, STRATEGIES
from uses.wrong_fit import ARGUMENTS, INPUTS, METHODS
from uses.wrong_optimizers import OPTIMIZERS, PIECES

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
# And what a method of a compiled model rejects, also on two replicas and in a graph.
PLACES_OF_TABLES = [
    *((table, "one device") for table in TABLES),
    *((table, "two replicas") for table in ("inputs", "arguments", "methods")),
]
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


@pytest.fixture(scope="module")
def bench_of_two_replicas(tmp_path_factory):
    with mirrored(2).scope():
        return Bench(unisono, tmp_path_factory.mktemp("bench"), run_eagerly=False)


def complaint(error: BaseException, words: tuple[str, ...]) -> str | None:
    """Describes what is wrong with an error message."""
    text = str(error)
    if "\n" in text or len(text) > LONGEST:
        return "is not one line of reasonable length"
    missing = [word for word in words if not re.search(word, text)]
    return f"lacks {missing}" if missing else None


@pytest.mark.parametrize(("table", "place"), PLACES_OF_TABLES)
@pytest.mark.short(but=["inputs-two replicas", "arguments-two replicas", "methods-two replicas"])
def test_wrong_uses_are_rejected_in_one_line_before_the_first_step(table, place, request, steps):
    bench = request.getfixturevalue("bench" if place == "one device" else "bench_of_two_replicas")
    failures, before = [], [np.array(value) for value in bench.model.get_weights()]
    for name, (use, words) in TABLES[table].items():
        steps.clear()
        updates = int(bench.model.optimizer.iterations)
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
        # A graph is traced where its first step may still fail; the count of updates says whether one was made.
        if int(bench.model.optimizer.iterations) > updates or (steps and place == "one device"):
            failures.append(f"{name}: updates were made before")
            bench.model.set_weights(before)
        if keras.config.dtype_policy().name != "float32":
            failures.append(f"{name}: the policy is {keras.config.dtype_policy().name}")
            keras.config.set_dtype_policy("float32")
    assert not failures, f"{len(failures)} of {len(TABLES[table])}:\n" + "\n".join(failures)
    assert_equal(before, bench.model.get_weights())


@pytest.mark.parametrize("argument", ["metrics", "weighted_metrics"])
def test_metrics_of_another_name_than_that_of_the_one_output_are_warned_of(argument, bench):
    with pytest.warns(UserWarning, match=f"`{argument}` names the output 'nope'.* use 'out'"):
        bench.new(**{argument: {"nope": ["mae"]}})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bench.new(**{argument: {"out": ["mae"]}})


def test_labels_of_validation_batches_are_rejected_by_the_name_of_the_argument(bench):
    model = bench.new(loss="sparse_categorical_crossentropy")
    data = tf.data.Dataset.from_tensors((X, np.full(6, 7)))
    with pytest.raises(ValueError, match=r"^`validation_data`: `y` contains the label 7.* from 0 to 1"):
        model.fit(X, np.zeros(6), validation_data=data, verbose=0)


@pytest.mark.parametrize("name", COMMANDS)
def test_wrong_commands_say_what_is_wrong_in_one_line(name, capsys, tmp_path, monkeypatch):
    arguments, words = COMMANDS[name]
    monkeypatch.chdir(tmp_path)
    try:
        status = main(arguments)
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr().err
    assert (status, said.count("\n")) == (2, 1), said
    for word in words:
        assert re.search(word, said), said
    assert list(tmp_path.iterdir()) == []


def test_wrong_command_is_named_with_those_that_exist(capsys):
    assert main([]) == 2
    assert "launch" in capsys.readouterr().out
    assert main(["lanch"]) == 2
    said = capsys.readouterr().err
    assert "`lanch` is not a command" in said and "launch" in said


def test_the_tables_hold_three_hundred_uses():
    assert sum(map(len, TABLES.values())) + len(COMMANDS) >= 300
