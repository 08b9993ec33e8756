"""What a number is, told from its values on all rows and on two parts of them."""

import numpy as np
import pytest

from unisono.distribute.join_rules import (
    ACROSS_ROWS,
    LARGEST,
    MEAN,
    MEAN_PER_REPLICA,
    MEAN_TIMES_REPLICAS,
    SMALLEST,
    SUM,
    SUM_TIMES_REPLICAS,
    WriteRule,
)
from unisono.trainer.step.compared_parts import another, degree, rule_of, unchanged, write_rule

ROWS = np.random.default_rng(0).normal(size=(9, 4))
CUT = 3

NUMBERS = {
    "a mean": (lambda x, r: x.mean(0), MEAN),
    "a constant": (lambda x, r: np.full(4, 2.5), MEAN),
    "a sum": (lambda x, r: x.sum(0), SUM),
    "scaled by the global batch": (lambda x, r: x.sum(0) / 9, SUM),
    "scaled, with a penalty for each replica": (lambda x, r: x.sum(0) / 9 + 7.0 / r, SUM),
    "scaled by rows of a replica and replicas": (lambda x, r: x.sum(0) / (5 * r), SUM),
    "a mean for each replica": (lambda x, r: x.mean(0) / r, MEAN_PER_REPLICA),
    "a mean, times the replicas": (lambda x, r: x.mean(0) * r, MEAN_TIMES_REPLICAS),
    "scaled by the global batch, times the replicas": (lambda x, r: x.sum(0) / 9 * r, SUM_TIMES_REPLICAS),
    "a constant, times the replicas": (lambda x, r: np.full(4, 2.5) * r, MEAN_TIMES_REPLICAS),
    "a mean of this replica's share": (lambda x, r: x.sum(0) / (len(x) * r) * r, MEAN),
    "a deviation": (lambda x, r: x.std(0), ACROSS_ROWS),
    "a largest value": (lambda x, r: x.max(0), ACROSS_ROWS),
    "a sum beside a mean": (lambda x, r: x.sum(0) + x.mean(0), ACROSS_ROWS),
    "nothing": (lambda x, r: np.zeros(4), None),
    "no number": (lambda x, r: np.full(4, np.nan), None),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_number_shows_its_rule(name):
    fn, rule = NUMBERS[name]
    one, whole, first, last = fn(ROWS, 1), fn(ROWS, 2), fn(ROWS[:CUT], 2), fn(ROWS[CUT:], 2)
    assert rule_of(one, whole, first, last, CUT / 9, 1e-9) == rule


def test_numbers_across_rows_show_whether_they_grow_with_the_rows():
    twice = np.concatenate([ROWS, ROWS])
    for fn, rule in (
        (lambda x, r: x.std(0), MEAN),
        (lambda x, r: x.std(0) * len(x), SUM),
        (lambda x, r: x.std(0) / r, MEAN_PER_REPLICA),
    ):
        assert degree(fn(ROWS, 1), fn(ROWS, 2), fn(twice, 2)) == rule


WRITES = {
    "a count of rows": (lambda old, x: old + len(x), WriteRule(SUM, 1.0)),
    "a running sum": (lambda old, x: old + x.sum(0), WriteRule(SUM, 1.0)),
    "a sum of this batch": (lambda old, x: x.sum(0), WriteRule(SUM, 0.0)),
    "a moving sum": (lambda old, x: 0.99 * old + 0.01 * x.sum(0), WriteRule(SUM, 0.99)),
    "a count of steps": (lambda old, x: old + 1, WriteRule(MEAN)),
    "a moving mean": (lambda old, x: 0.9 * old + 0.1 * x.mean(0), WriteRule(MEAN)),
    "the largest so far": (lambda old, x: np.maximum(old, x.max(0)), WriteRule(LARGEST)),
    "the smallest of this batch": (lambda old, x: x.min(0), WriteRule(SMALLEST)),
    "moved to the rows": (
        lambda old, x: old + 0.1 * (x.sum(0) - np.arange(4) * len(x) * old),
        WriteRule(SUM, 1.0),
    ),
    "a moving deviation": (lambda old, x: 0.9 * old + 0.1 * x.std(0), None),
}


@pytest.mark.parametrize("name", WRITES)
def test_write_shows_its_rule(name):
    fn, rule = WRITES[name]
    cases = [
        (old, fn(old, ROWS), fn(old, ROWS[:CUT]), fn(old, ROWS[CUT:]))
        for old in (np.zeros(4), np.linspace(0.3, 2, 4))
    ]
    assert write_rule(cases, CUT / 9, 1e-6) == rule


def test_what_was_not_written_shows_no_rule():
    old = np.array([1.0, np.nan])
    same, one_row_adds = (old, old, old, old), (old, old, old, old + 1)
    assert unchanged([same, same])
    assert not unchanged([same, one_row_adds])


@pytest.mark.parametrize("first", [0, 40, 200_000, 2**40])
@pytest.mark.parametrize("tolerance", [1e-6, 1e-3, 3e-2])
def test_integers_are_compared_to_the_digit_whatever_their_size(first, tolerance):
    def cases(*added):
        olds = np.array([first]), another(np.array([first]))
        return [(old, *(old + each for each in added)) for old in olds]

    assert write_rule(cases(1, 1, 1), 1 / 3, tolerance) == WriteRule(MEAN)
    assert write_rule(cases(9, 3, 6), 1 / 3, tolerance) == WriteRule(SUM)
    assert write_rule(cases(9, 3, 5), 1 / 3, tolerance) is None


def test_flags_that_are_set_and_flags_of_any_row_are_told_apart():
    def rule(fn):
        olds = np.array([False, False]), another(np.array([False, False]))
        rows = np.array([[0, 1], [0, 0], [1, 0]], bool)
        return write_rule(
            [(old, fn(old, rows), fn(old, rows[:1]), fn(old, rows[1:])) for old in olds], 1 / 3, 1e-3
        )

    assert rule(lambda old, x: np.ones_like(old)) == WriteRule(MEAN)
    assert rule(lambda old, x: old | x.any(0)) == WriteRule(LARGEST)
    assert rule(lambda old, x: old & x.all(0)) == WriteRule(SMALLEST)


def test_what_is_added_to_a_large_total_shows_its_rule():
    added = np.float32([[7.0, 3.0], [3.0, 1.0], [4.0, 2.0]])
    cases = [
        (old, *(old + each for each in added)) for old in (np.float32([1e6, 2e6]), np.float32([2e6, 1e6]))
    ]
    assert write_rule(cases, 1 / 3, 1e-3) == WriteRule(SUM)


EQUAL = np.ones((9, 1)) * np.array([[0.5, 0.0, 1.0, 1.5]])  # both parts have the row that decides
SAME = {
    "the largest so far": (lambda old, x: np.maximum(old, x.max(0)), WriteRule(LARGEST)),
    "the smallest so far": (lambda old, x: np.minimum(old, x.min(0)), WriteRule(SMALLEST)),
    "the mean of this batch": (lambda old, x: x.mean(0), WriteRule(MEAN)),
    "a moving average": (lambda old, x: 0.9 * old + 0.1 * x.mean(0), WriteRule(MEAN)),
    "a sum of means": (lambda old, x: old + x.mean(0), WriteRule(MEAN)),
    "a count of steps": (lambda old, x: old + 1, WriteRule(MEAN)),
}


@pytest.mark.parametrize("name", SAME)
def test_write_shows_its_rule_where_the_parts_agree(name):
    fn, rule = SAME[name]
    cases = [
        (old, *[fn(old, x) for x in (EQUAL, EQUAL[:CUT], EQUAL[CUT:])])
        for old in (np.zeros(4), np.linspace(0.3, 2, 4))
    ]
    assert write_rule(cases, CUT / 9, 1e-6) == rule


@pytest.mark.parametrize("kept", [1.0, 0.9, 0.999, 0.9997])
@pytest.mark.parametrize("added", [0.01, 3.0, 700.0])
def test_part_of_the_old_value_that_stays_is_exact_in_single_precision(kept, added):
    old = np.zeros(3, "float32")
    parts = np.float32(added) * np.float32([[1.0, 0.3, 2.1], [2.2, 0.9, 0.4]])

    def case(value):
        stays = np.float32(kept) * value
        return value, *((stays + part).astype("float32") for part in (parts.sum(0), *parts))

    rule = write_rule([case(old), case(another(old, size=float(parts.sum(0).max())))], 0.3, 1e-3)
    assert rule == WriteRule(SUM, kept)
