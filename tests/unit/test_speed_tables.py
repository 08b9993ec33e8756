"""The tables of the speed comparison, from numbers in this file; nothing is measured."""

import importlib
import pathlib

import pytest

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture
def speed(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("benchmarks.speed")


@pytest.fixture
def tables(speed):
    return importlib.import_module("benchmarks.speed_tables")


def results_of(speed, **microseconds):
    results = []
    for name, values in microseconds.items():
        result = speed.Result(name)
        for value in values:
            result.add("step", 1e-6 * value)
            result.add("short_fit", 1e-2 * value)
        results.append(result)
    return [*results, speed.Result("torch", "not installed: torch")]


def test_table_is_sorted_and_gives_medians_quartiles_and_ratios(speed, tables):
    lines = tables.table(results_of(speed, keras=[900, 1000, 1100], ours=[40, 50, 60], tf_xla=[40, 40, 41]))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines.splitlines()[2:]]
    assert [row[1:4] for row in rows] == [
        ["40 [40, 40]", "1.00", "0.04"],
        ["50 [45, 55]", "1.25", "0.05"],
        ["1000 [950, 1050]", "25.00", "1.00"],
    ]


def test_aims_say_what_was_reached_and_leave_out_what_was_not_measured(speed, tables):
    task = speed.Task("mlp")
    text = tables.aims([(task, results_of(speed, keras=[1000], ours=[50], tf_xla=[40]))])
    assert "the best hand-written loop | 1.10 | 1.25 | no" in text
    assert "Keras 3 fit as it comes | 0.05 | 0.05 | yes" in text
    assert "JAX" not in text


def test_page_names_who_was_left_out_and_why(speed, tables):
    page = tables.page([(speed.Task("cnn"), results_of(speed, ours=[50]))], [], {"rounds": 1})
    assert "PyTorch loop: not installed: torch" in page
    assert "## cnn, 1 replica, arrays" in page


def test_contestant_that_fails_takes_no_further_part(speed):
    result, said = speed.Result("keras"), []

    def fail():
        raise speed.Lost("ValueError: no")

    result.add("step", 1.0)
    speed._guarded(result, said.append, fail)
    speed._guarded(result, said.append, lambda: result.add("step", 1.0))
    assert result.skipped == "fails: ValueError: no" and not result.values and len(said) == 1


def test_reason_to_skip_is_said_in_words(speed):
    from benchmarks.contestants import BY_NAME

    two, dataset = speed.Task(replicas=2), speed.Task(input="dataset")
    assert BY_NAME["tf_xla"].reason_to_skip(two) == "trains on one replica only"
    assert BY_NAME["tf_xla"].reason_to_skip(dataset) == "does not read tf.data in its loop"
    assert BY_NAME["ours"].reason_to_skip(two) is None
