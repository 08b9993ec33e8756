"""Each row of the partition has a drawing, and what it says of values is compared with one device wherever it stands."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import tensorflow as tf
from partition.declared_calls import DECLARED
from partition.differential import DEFECTS
from partition.drawn_case import CONTEXTS, Argument, Case, Step
from partition.operations import QUICK_SIZES, SIZES, draw, draw_step, drawings_of_rows, examine
from partition_in_parts import Parts, types_of

from unisono.trainer.partition.operations import ROWS
from unisono.trainer.partition.sizes.bounds import bound_by

SHARE = 19  # one in so many rows is in `make test`
BLOCKS = 24
DRAWN = drawings_of_rows()


@pytest.fixture(autouse=True)
def quiet():
    """Special numbers are no reason to warn."""
    with np.errstate(all="ignore"):
        yield


def _call(name):
    """A call of an operation that one device can compute."""
    for seed in range(60):
        try:
            case = Case((draw_step(name, random.Random(f"{name} {seed}")),))
            case(tf.constant(case.samples(5)))
        except Exception as error:  # whatever a wrong call raises
            reason = error
        else:
            return case
    raise AssertionError(
        f"{name} is not drawn: add a line to operation_calls.txt, or a function to declared_calls.py: {reason}"
    )


@pytest.mark.long
def test_every_row_is_drawn():
    assert set(ROWS) == set(DRAWN), "add a line to operation_calls.txt, or a function to declared_calls.py"
    for kind, name in DRAWN.items():
        case = _call(name)
        if name.startswith("declared."):
            traced = tf.function(case, autograph=False).get_concrete_function(tf.constant(case.samples(3)))
            assert kind in set(types_of(traced.graph)), kind


def _assert_right(names, seed, sizes, quick):
    cases = {name: case for name in names if isinstance(case := draw(name, seed), Case)}
    found = zip(cases.items(), examine(list(cases.values()), sizes, quick))
    assert not [f"{name}: {outcome}\n{case}" for (name, case), outcome in found if outcome.kind in DEFECTS]
    return cases


def test_share_of_rows_matches_one_device():
    names = list(DRAWN.values())[::SHARE]
    assert len(_assert_right(names, 3, QUICK_SIZES, quick=True)) > 0.8 * len(names)


@pytest.mark.long
@pytest.mark.parametrize("block", range(BLOCKS))
def test_rows_match_one_device(block):
    for seed in (5, 6):
        _assert_right(list(DRAWN.values())[block::BLOCKS], seed, SIZES, quick=False)


ANGLES = Step("Tanh", (("x", Argument("batch", ("n", 3))),))


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.short("function")
def test_program_in_a_context_matches_one_device_with_its_gradient(context):
    (found,) = examine([Case((ANGLES,), (), "square", context)], QUICK_SIZES, quick=True)
    assert found.kind == ("gathered" if context.startswith("gathered") else "right")


@pytest.mark.long
def test_programs_are_drawn_in_every_context():
    cases = [draw(name, seed) for name in ("Tanh", "Sum", "MatMul") for seed in range(25)]
    assert {case.context for case in cases if isinstance(case, Case)} == {"", *CONTEXTS}


@pytest.mark.parametrize("name", [name for name, each in DECLARED.items() if each.rejected])
def test_declared_call_is_rejected(name):
    (found,) = examine([_call(f"declared.{name}")], QUICK_SIZES, quick=True)
    assert found.kind == "rejected"


SIZES_OF = Step("Shape", (("input", Argument("batch", ("n", 3))),))

FALSE = {  # what a row may say, and is not so
    "bounds": ("Tanh", {"bounds": bound_by(-0.1, 0.1)}, Case((ANGLES,))),
    "numbers": (
        "Neg",
        {"numbers": lambda call, number: call.constant(0)},
        Case((SIZES_OF, Step("Neg", (("x", Argument("step 0", ())),)))),
    ),
    "a shape": ("Tanh", {"shape": lambda call: [[*call.shape()[:1], 4]]}, Case((ANGLES,))),
}


@pytest.mark.parametrize("name", FALSE)
def test_false_value_of_a_row_is_found(name, monkeypatch):
    kind, fields, case = FALSE[name]
    assert [found.kind for found in examine([case], QUICK_SIZES, quick=True)] == ["right"]
    monkeypatch.setitem(ROWS, kind, dataclasses.replace(ROWS[kind], **fields))
    (found,) = examine([case], QUICK_SIZES, quick=True)
    assert found.kind == "wrong" and kind in found.details


def test_list_that_grows_has_no_known_length():
    def fn(x):
        array = tf.TensorArray(x.dtype, 0, dynamic_size=True)
        for number in range(3):
            array = array.write(number, x * (number + 1.0))
        return tf.shape(array.stack())[0] + tf.cast(tf.reduce_sum(x) * 0, tf.int32)

    Parts(fn, np.ones((7, 4))).check()
