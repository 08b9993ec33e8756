"""A few seeds of the tester, and the tester itself: it finds failures and shrinks them."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable
from typing import Any

import keras
import pytest
import tensorflow as tf

from tests.fuzz.__main__ import shrunk_report
from tests.fuzz.case import Case, Output, read, written
from tests.fuzz.check import Finding, check
from tests.fuzz.draw import draw, drawn
from tests.fuzz.excluded import EXCLUDED, excluded
from tests.fuzz.rules import IMPOSSIBLE, NOT_AS_KERAS, Rules, takes_long
from tests.fuzz.shrink import shrink
from unisono.trainer.partition.labels import PARTIAL_SUM, REPLICATED
from unisono.trainer.partition.operations import ROWS

# Blocks of cases, distributed over pytest's processes, and the cases in each: 15 seconds on two cores.
SMALL_BLOCKS, SMALL_CASES = 20, 10
BLOCKS, CASES = 10, 4


def _is_quick(case: Case) -> bool:
    """XLA takes seconds to compile, and processes take seconds to start: only `python -m tests.fuzz` draws these."""
    return excluded(case) is None and case.way in ("graph", "eager") and not takes_long(case)


def _is_small(case: Case) -> bool:
    """A graph of two replicas that traces in a second, or a few eager steps; no loops, nothing drawn twice.

    Eager cases may have three replicas: a graph of three costs four times as much.
    """
    once = len(case.inputs) == len(case.outputs) == 1 and len(case.body) < 2 and len(case.then) < 2
    looped = case.pool in ("recurrent", "gated", "attention") or case.resume or case.validation
    eager, steps = case.way == "eager", -(-case.rows // case.batch) * case.epochs
    at_hand = case.strategy not in (("mirrored 4",) if eager else ("mirrored 3", "mirrored 4"))
    return once and not looped and at_hand and (steps <= 4 or not eager) and _is_quick(case)


def _check_all(seeds: range, accepts: Callable[[Case], bool], **given: Any) -> None:
    for seed in seeds:
        case = draw(seed, accepts, given=given)
        finding = check(case)
        assert finding is None, shrunk_report(case, finding, check)


@pytest.mark.short("1")
@pytest.mark.parametrize("block", range(SMALL_BLOCKS))
def test_small_programs_have_the_results_of_one_device_and_of_keras(block):
    seeds = range(block * SMALL_CASES, (block + 1) * SMALL_CASES)
    _check_all(seeds, _is_small, way=("graph", "eager")[block % 2])


@pytest.mark.as_for_users
@pytest.mark.long
@pytest.mark.parametrize("block", range(BLOCKS))
def test_programs_have_the_results_of_one_device_and_of_keras(block):
    _check_all(range(block * CASES, (block + 1) * CASES), _is_quick)


def test_case_that_is_written_and_read_is_the_same():
    for seed in range(100):
        assert read(written(draw(seed))) == draw(seed)


def test_draw_of_one_seed_is_one_case():
    assert [draw(seed) for seed in range(20)] == [draw(seed) for seed in range(20)]


def test_every_option_is_drawn():
    stream = random.Random(0)
    cases = [drawn(Case, stream) for _ in range(3000)]
    for specification, examples in ((Case, cases), (Output, [o for case in cases for o in case.outputs])):
        for field in dataclasses.fields(specification):
            values = [getattr(one, field.name) for one in examples]
            if isinstance(field.default, tuple):
                values = [item for value in values for item in value]
            options = field.metadata.get("options", ())
            missing = {option for option in options if option not in values and option is not Output}
            assert not missing, f"{specification.__name__}.{field.name}: {missing} is never drawn"


def test_every_rule_is_about_some_case():
    _assert_all_hold_somewhere((*NOT_AS_KERAS, *EXCLUDED), map(draw, range(1500)))
    stream = random.Random(0)
    _assert_all_hold_somewhere(IMPOSSIBLE, (drawn(Case, stream) for _ in range(20_000)))


def _assert_all_hold_somewhere(rules: Rules, cases: Iterable[Case]) -> None:
    missing = list(rules)
    for case in cases:
        missing = [(reason, holds) for reason, holds in missing if not holds(case)]
        if not missing:
            return
    raise AssertionError(f"about no case: {[reason for reason, _ in missing]}")


def test_given_fields_that_no_case_can_have_are_rejected(monkeypatch):
    monkeypatch.setattr("tests.fuzz.draw.TRIES", 1000)
    with pytest.raises(ValueError, match="give fewer fields"):
        draw(0, given={"form": "sequential", "inputs": ("vector", "tokens")})


def _smallest(case: Case, kind: str) -> Case:
    """The case that the tester prints for a failure, parsed."""
    finding = check(case)
    assert finding is not None and finding.kind == kind
    report = shrunk_report(case, finding, check)
    return read(report.split('--case "')[1].split('"\n')[0])


@pytest.mark.long
def test_sum_with_a_wrong_label_is_found_and_shrunk(monkeypatch):
    right = ROWS["Sum"].find_ruling

    def wrong(view):
        wants, made = right(view)
        return wants, [REPLICATED if label == PARTIAL_SUM else label for label in made]

    monkeypatch.setattr(ROWS["Sum"], "find_ruling", wrong)
    large = Case(seed=3, outputs=(Output(metrics=("mae",)),), optimizer="momentum")
    assert _smallest(large, "replicas differ from one device") == Case(seed=3)


def test_copies_that_differ_in_the_last_bits_are_found_and_shrunk(monkeypatch):
    update = keras.optimizers.SGD.update_step

    def unequal(self, gradient, variable, learning_rate):
        replica = tf.distribute.get_replica_context()
        number = tf.cast(replica.replica_id_in_sync_group, gradient.dtype) if replica else 0.0
        update(self, gradient * (1 + 1e-14 * number), variable, learning_rate)

    monkeypatch.setattr(keras.optimizers.SGD, "update_step", unequal)
    outputs = Output(kind="classes", loss="SparseCategoricalCrossentropy"), Output(metrics=("mae",))
    how = {"strategy": "mirrored 3", "way": "eager", "rows": 7, "epochs": 2, "then": ("predict",)}
    body = ("dense", "layer normalization")
    large = Case(seed=3, body=body, outputs=outputs, outputs_as="dict", optimizer="momentum", **how)
    assert _smallest(large, "copies of a variable differ") == Case(seed=3)


def test_shrink_drops_every_choice_that_does_not_matter():
    case = draw(7, accepts=lambda case: case.sample_weight == "rows" and case.clip != "none")
    smallest = shrink(case, lambda one: one.sample_weight == "rows" and one.clip != "none")
    assert smallest == Case(seed=7, sample_weight="rows", clip=smallest.clip) and smallest.clip == "clipnorm"


def test_program_that_keras_cannot_run_is_reported_as_such():
    finding = check(Case(outputs=(Output(loss="Dice", kind="values"),), batch=0))
    assert isinstance(finding, Finding) and finding.kind.startswith("not a program")
