"""The mutations of rules: each changes what it should, and one that no program detects is reported."""

from __future__ import annotations

import pytest
from partition.mutations import MUTATIONS, Sizes, Table, label_table, size_table, survivors

from unisono.trainer.partition.labels import REPLICATED, label_sharded

UNKNOWN = "unknown"
SIZES = Sizes(  # an extent is a pair: samples times the first number, plus the second
    is_size=lambda each: each == UNKNOWN or (isinstance(each, tuple) and isinstance(each[0], int)),
    depends=lambda each: each != UNKNOWN and each[0] != 0,
    plus=lambda each, number: (each[0], each[1] + number),
    constant=lambda number: (0, number),
    samples=(1, 0),
    unknown=UNKNOWN,
)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("derives one more", [[(2, 1), (0, 4)], UNKNOWN]),
        ("derives one less", [[(2, -1), (0, 4)], UNKNOWN]),
        ("derives a constant", [[(0, 3), (0, 4)], UNKNOWN]),
        ("derives nothing", [[UNKNOWN, (0, 4)], UNKNOWN]),
        ("believes in samples", [[(2, 0), (0, 4)], (1, 0)]),
        ("believes in a constant", [[(2, 0), (0, 4)], (0, 3)]),
        ("takes constants for samples", [[(2, 0), (1, 0)], UNKNOWN]),
    ],
)
def test_mutation_of_a_size_rule_changes_what_it_says(name, expected):
    assert size_table({}, SIZES).mutations[name]((), [[(2, 0), (0, 4)], UNKNOWN]) == expected


def test_mutation_that_changes_nothing_returns_the_same_object():
    mutations = size_table({}, SIZES).mutations
    constants = [[(0, 4)], None]
    assert mutations["derives one more"]((), constants) is constants
    ruling = [None], [REPLICATED]
    assert label_table({}).mutations["made of all samples"]((None,), ruling) is ruling


class _Detects:
    """A program that runs a rule, and detects results that it does not expect."""

    def __init__(self, table: Table, expected: list) -> None:
        self.table, self.expected = table, expected

    def notices(self, kind, applied):
        applied[0] = False
        return self.table.rules[kind]("argument") not in self.expected


def test_mutations_that_no_program_detects_are_left_and_the_rule_is_the_same_again():
    def rule(argument):
        return [(1, 0), (0, 4)]

    table = size_table({"Shape": rule}, SIZES)
    made, left = survivors(table, "Shape", [_Detects(table, [rule(None), [UNKNOWN, (0, 4)]])])
    assert (made, left) == (5, ["derives nothing"]) and table.rules["Shape"] is rule
    assert survivors(table, "Shape", [_Detects(table, [rule(None)])]) == (5, [])


def test_every_mutation_of_labels_is_in_the_table():
    class View:
        labels = [label_sharded(0)]

        def out_shape(self):
            return [7, 4]

    table = label_table({"Identity": lambda view: ([None], [label_sharded(0)])})
    assert set(table.mutations) == set(MUTATIONS)
    changed = table.mutations["made along another axis"]((View(),), table.rules["Identity"](View()))
    assert changed[1] == [label_sharded(1)]
