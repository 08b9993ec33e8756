"""Programs of all operations, in uneven and empty parts, against one device: a share of them here, the others are long."""

from __future__ import annotations

import itertools
import random

import numpy as np
import partition_in_parts
import pytest
from partition.differential import DEFECTS, difference, examine_all, splits
from partition.drawing import Drawing
from partition.drawn_case import Argument, Case, Step
from partition.hand_written import ALL, BATCH_SIZES, program
from partition.known import KNOWN, KNOWN_OPERATIONS
from partition.operations import QUICK_SIZES, SIZES, Statement, draw, examine, operations, read, report
from partition_in_parts import Parts

BLOCKS = 24  # for the processes of pytest
SHARE = 53  # one in so many operations is in `make test`
COVERED = 720  # operations of the 770 or so; the statement of the tester lists the others
PROGRAMS = [name for name in ALL if name not in KNOWN]
DRAWN = [name for name in operations() if name not in KNOWN_OPERATIONS]


@pytest.fixture(autouse=True)
def quiet():
    """Special numbers are no reason to warn."""
    with np.errstate(all="ignore"):
        yield


def _assert_right(names, outcomes):
    defects = [f"{name}: {found}" for name, found in zip(names, outcomes) if found.kind in DEFECTS]
    assert not defects, "\n".join(defects)


@pytest.mark.short("1", "3")
@pytest.mark.parametrize("block", range(BLOCKS))
def test_program_with_sizes_and_special_numbers_matches_one_device(block):
    names = PROGRAMS[block::BLOCKS]
    _assert_right(names, examine_all([program(name, QUICK_SIZES) for name in names], quick=True))


@pytest.mark.long
@pytest.mark.parametrize("block", range(BLOCKS))
def test_program_with_sizes_and_special_numbers_matches_one_device_at_every_size(block):
    names = PROGRAMS[block::BLOCKS]
    _assert_right(names, examine_all([program(name, BATCH_SIZES) for name in names]))


_ONE, _PLACE = Argument("batch", ("n", 1)), Argument("constant", (1, 1), "int32", "int 0 1")
FOUND = {  # by drawn programs, and wrong or an error once
    "shapes that differ": Case(
        (
            Step(
                "ReciprocalGrad",
                (
                    ("y", Argument("batch", (1, "n"), "float32")),
                    ("dy", Argument("batch", ("n", 1), "float32")),
                ),
            ),
        )
    ),
    "shape of elements": Case(
        (Step("declared.TensorListConcatV2", (("x", _ONE),), (("along", 0),)),), (), "sum"
    ),
    "one known place": Case(
        (Step("GatherNd", (("params", Argument("batch", ("n", "n"))), ("indices", _PLACE))),),
        (),
        "sum",
        "branch",
    ),
}


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.short("shapes that differ")
def test_program_that_was_once_wrong_is_right(name):
    _assert_right([name], examine([FOUND[name]], QUICK_SIZES, quick=True))


@pytest.mark.long
@pytest.mark.parametrize("name", KNOWN)
def test_program_that_is_known_to_be_wrong_is_wrong(name):
    (found,) = examine_all([program(name, BATCH_SIZES)])
    assert found.kind in DEFECTS, f"remove {name!r} from `KNOWN`: it is {found.kind}"


def _assert_drawn_are_right(names, seed, sizes, quick):
    cases = {name: case for name in names if isinstance(case := draw(name, seed), Case)}
    _assert_right(cases, examine(list(cases.values()), sizes, quick))
    return cases


@pytest.mark.long
def test_share_of_all_operations_matches_one_device():
    cases = _assert_drawn_are_right(DRAWN[:: 2 * SHARE], 0, QUICK_SIZES, quick=True)
    assert len(cases) > 0.8 * len(DRAWN[:: 2 * SHARE])


@pytest.mark.long
def test_share_of_all_programs_matches_one_device_with_default_collectives(monkeypatch):
    monkeypatch.setattr(Parts, "run_parts", Parts.run_on_strategy)
    _assert_drawn_are_right(DRAWN[7 :: 5 * SHARE], 0, QUICK_SIZES, quick=True)
    names = PROGRAMS[:: 4 * SHARE]
    _assert_right(names, examine_all([program(name, QUICK_SIZES) for name in names], quick=True))


@pytest.mark.long
@pytest.mark.parametrize("block", range(BLOCKS))
def test_operations_match_one_device_with_default_collectives(block, monkeypatch):
    monkeypatch.setattr(Parts, "run_parts", Parts.run_on_strategy)
    _assert_drawn_are_right(DRAWN[block::BLOCKS], 1, QUICK_SIZES, quick=True)


@pytest.mark.parametrize("shape, dtype", [(("n2", 3), "int32"), ((4, "n2"), "complex128")])
@pytest.mark.short("shape1-complex128")
def test_tensor_of_unknown_rank_is_gathered_by_default_collectives(shape, dtype, monkeypatch):
    monkeypatch.setattr(Parts, "run_parts", Parts.run_on_strategy)
    squeezed = Step(
        "keras.squeeze", (("x", Argument("batch", shape, dtype, "int 0 9", 1)),), (("axis", None),)
    )
    case = Case((squeezed, Step("Square", (("x", Argument("step 0", ())),))), ("share 0", "tile 0"))
    _assert_right([case], examine([case], QUICK_SIZES, quick=True))


@pytest.mark.long
@pytest.mark.parametrize("block", range(BLOCKS))
def test_operations_match_one_device(block):
    _assert_drawn_are_right(DRAWN[block::BLOCKS], 0, SIZES, quick=False)


@pytest.mark.long
def test_operations_of_a_step_are_covered():
    missed = [
        name for name in operations() if isinstance(draw(name, 0), str) and isinstance(draw(name, 1), str)
    ]
    assert len(operations()) - len(missed) >= COVERED, missed


def test_drawn_case_is_the_same_again_and_is_read_as_it_is_written():
    for name in ("MatMul", "keras.softmax", "Slice", "ConcatV2", "Einsum"):
        case = draw(name, 3)
        assert isinstance(case, Case) and draw(name, 3) == case and read(str(case)) == case


def test_samples_are_drawn_along_every_axis():
    steps = [Drawing("MatMul", random.Random(seed)).step() for seed in range(200)]
    shapes = {argument.shape for step in steps for _, argument in step.arguments}
    assert any(shape[0] == "n" for shape in shapes) and any(shape[-1] == "n" for shape in shapes)
    assert any("2n" in shape for shape in shapes) and ("n", "n") in shapes
    assert {argument.source for step in steps for _, argument in step.arguments} >= {
        "batch",
        "sum",
        "constant",
    }


def test_lost_part_of_a_sum_is_found_and_made_smaller(monkeypatch):
    answer = partition_in_parts.answer_requests

    def loses(requests, number):
        return answer(requests[:-1] if requests[0].axis is None else requests, number)

    monkeypatch.setattr(partition_in_parts, "answer_requests", loses)
    given = Argument("batch", ("n", 3, 2), "float32"), Argument("constant", (1,), "int32", "int 0 1", 7)
    step = Step("Sum", (("input", given[0]), ("axis", given[1])), (("keep_dims", True),))
    large = Case((step, Step("Tanh", (("x", Argument("step 0", ())),))), ("shape", "sum"), "square")
    (found,) = examine([large])
    assert found.kind == "wrong"
    text = report(large, found)
    smallest = read(text.split('--case "')[1].rstrip('"\n'))
    assert len(smallest.steps) == 1 and not smallest.endings and not smallest.steps[0].attributes
    assert smallest.columns == 1, "one number for each sample is enough"


@pytest.mark.long
def test_programs_in_one_graph_have_outcomes_of_their_own():
    def case(operation, *shapes):
        names = ("a", "b") if operation == "MatMul" else ("x",)
        given = [(name, Argument("batch", shape)) for name, shape in zip(names, shapes)]
        return Case((Step(operation, tuple(given)),))

    cases = [case("Tanh", ("n", 2)), case("MatMul", (2, "n"), ("n", 2)), case("MatMul", ("n", 2), (2, "n"))]
    assert [found.kind for found in examine(cases, QUICK_SIZES, quick=True)] == ["right", "right", "gathered"]


def test_statement_counts_operations_and_their_outcomes(capsys):
    statement = Statement()
    statement.add(["Tanh", "Fingerprint"], 0)
    assert statement.covered == {"Tanh"} and "1 operations of 2" in str(statement)
    assert "not covered: Fingerprint" in str(statement)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([1.0, np.nan], [np.nan, 1.0]),
        ([np.inf], [-np.inf]),
        ([np.inf], [1e300]),
        ([1.0 + 1e-9], [1.0]),
        ([1.0], [[1.0]]),
    ],
)
def test_difference_of_numbers_positions_and_shapes_is_seen(found, expected):
    assert difference(np.array(found), np.array(expected))
    assert difference(np.array(expected), np.array(expected)) is None


def test_integers_that_differ_by_one_differ():
    assert difference(np.array([2**60 + 1]), np.array([2**60])) and difference(np.array([1]), np.array([1.0]))


def test_parts_are_uneven_and_empty():
    found = list(itertools.chain.from_iterable(splits(size, 3) for size in SIZES))
    assert all(sum(parts) in SIZES and len(parts) == 3 for parts in found)
    assert any(0 in parts[:1] for parts in found) and any(parts[-1] == 0 for parts in found)
