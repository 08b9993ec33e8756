"""Breaks each rule in turn and counts how many programs detect it: `python -m tests.partition.mutations [operation ...]`.

A mutation changes the rule of one operation type: another label for its outputs, a label that it accepts for its inputs, or
another extent or size that it derives (`size_table`). A program detects it if it communicates differently than expected,
raises an error, or gives a different result for uneven shards than for the full batch. The programs are those of
`test_partition_rules.py`. Mutations that change nothing in any program are not counted. Each rule is used by a program;
`test_partition_rules.py` checks that.
The counts are in `docs/design/0026-partitioned-step.md`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "helpers")]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
from partition_in_parts import Parts, types_of  # noqa: E402
from partition_programs import COMMUNICATED, PROGRAMS, SINGLE  # noqa: E402

from unisono.compat.tensorflow_graphs.one_device import subgraphs  # noqa: E402
from unisono.trainer.partition import partition_graph  # noqa: E402
from unisono.trainer.partition.labels import (  # noqa: E402
    OWN,
    PARTIAL_MAX,
    PARTIAL_MEAN,
    PARTIAL_MIN,
    PARTIAL_SUM,
    REPLICATED,
)
from unisono.trainer.partition.operations import ROWS  # noqa: E402
from unisono.trainer.partition.sizes.size import Samples, Size  # noqa: E402
from unisono.trainer.partition.sizes.size_arrays import as_sizes  # noqa: E402

PARTS = ((3, 4), (2, 3, 2), (6, 0, 1))


def _made(change):
    """A mutation of an operation's output label."""

    def mutated(view, ruling):
        wants, made = ruling
        return wants, [change(view, label) for label in made]

    return mutated


def _wanted(change):
    """A mutation of an operation's input labels."""

    def mutated(view, ruling):
        wants, made = ruling
        return [change(view.labels[n], want) for n, want in enumerate(wants)], made

    return mutated


def _other_axis(view, label):
    rank = len(view.out_shape())
    return label._replace(axis=(label.axis + 1) % rank) if label.is_sharded and rank > 1 else label


def _same_everywhere(view, label):
    return REPLICATED if label.kind != "replicated" and view.out_shape() is not None else label


def _a_sum(view, label):
    differs = any(each.kind != "replicated" for each in view.labels)
    return PARTIAL_SUM if label == REPLICATED and differs else label


_OTHER = {
    PARTIAL_SUM: PARTIAL_MAX,
    PARTIAL_MAX: PARTIAL_SUM,
    PARTIAL_MIN: PARTIAL_MAX,
    PARTIAL_MEAN: PARTIAL_SUM,
}

MUTATIONS = {
    "made the same everywhere": _made(_same_everywhere),
    "made along another axis": _made(_other_axis),
    "made in other blocks": _made(
        lambda view, label: (
            label._replace(blocks=2 if label.blocks == 1 else 1) if label.is_sharded else label
        )
    ),
    "made of all samples": _made(lambda view, label: label._replace(chosen=None) if label.chosen else label),
    "made a sum": _made(_a_sum),
    "made another reduction": _made(lambda view, label: _OTHER.get(label, label)),
    "takes it as it is": _wanted(lambda have, want: None if want not in (None, have) else want),
    "takes it whole": _wanted(lambda have, want: REPLICATED if want is None and have != REPLICATED else want),
    "takes global sizes": _wanted(
        lambda have, want: REPLICATED if want is not None and want.kind == "sizes" else want
    ),
    "takes the key of all": _wanted(lambda have, want: REPLICATED if want == OWN else want),
}

EQUIVALENT = {
    ("LogicalOr", "made another reduction"): "a sum of booleans is true where one of them is",
    ("Rank", "takes it whole"): "a known rank is a constant, which has no inputs",
}
"""Mutations that change no number and no collective of any step, and why."""


class Rules:
    """One method of all rows that have it, by the type of the operation, as a table whose entries can be replaced."""

    def __init__(self, name: str, *fields: str) -> None:
        self.name = name
        self.kinds = {kind for kind, row in ROWS.items() if any(getattr(row, field) for field in fields)}

    def __getitem__(self, kind: str) -> Any:
        return getattr(ROWS[kind], self.name)

    def __setitem__(self, kind: str, rule: Any) -> None:
        setattr(ROWS[kind], self.name, rule)

    def keys(self) -> set[str]:
        return self.kinds


class Table(NamedTuple):
    """Rules by the type of operation, and mutations of what they return: `(arguments, result)` gives another result.

    A mutation that changes nothing returns the same object.
    """

    rules: Any
    mutations: dict[str, Callable[[tuple[Any, ...], Any], Any]]


class Sizes(NamedTuple):
    """What the mutations of size rules have to know about extents and integer values that are symbols.

    Attributes:
        is_size: whether an object is one extent or value, and no list of them.
        depends: whether it is known and depends on the number of samples.
        plus: an extent or value and an int, added.
        constant: the extent or value that is this int.
        samples: the one that is the number of samples.
        unknown: the one that nothing is known of.
    """

    is_size: Callable[[Any], bool]
    depends: Callable[[Any], bool]
    plus: Callable[[Any, int], Any]
    constant: Callable[[int], Any]
    samples: Any
    unknown: Any


def label_table(rules: dict[str, Any]) -> Table:
    """The table of the rules of labels."""

    def of_ruling(mutation: Any) -> Any:
        def mutated(arguments: tuple[Any, ...], ruling: Any) -> Any:
            before = list(ruling[0]), list(ruling[1])
            wants, made = mutation(arguments[0], (list(ruling[0]), list(ruling[1])))
            return ruling if (list(wants), list(made)) == before else (wants, made)

        return mutated

    return Table(rules, {name: of_ruling(mutation) for name, mutation in MUTATIONS.items()})


def size_table(rules: dict[str, Any], sizes: Sizes) -> Table:
    """A table of size rules, whose results are nested lists and tuples of extents or values."""
    changes = {
        "derives one more": lambda size: sizes.plus(size, 1) if sizes.depends(size) else size,
        "derives one less": lambda size: sizes.plus(size, -1) if sizes.depends(size) else size,
        "derives a constant": lambda size: sizes.constant(3) if sizes.depends(size) else size,
        "derives nothing": lambda size: sizes.unknown if sizes.depends(size) else size,
        "believes in samples": lambda size: sizes.samples if size == sizes.unknown else size,
        "believes in a constant": lambda size: sizes.constant(3) if size == sizes.unknown else size,
        "takes constants for samples": lambda size: (
            size if size == sizes.unknown or sizes.depends(size) else sizes.samples
        ),
    }

    def everywhere(change: Any) -> Any:
        def changed(result: Any) -> Any:
            if sizes.is_size(result):
                return change(result)
            if isinstance(result, np.ndarray):
                found = as_sizes(np.frompyfunc(change, 1, 1)(result))
                return found if any(a is not b for a, b in zip(found.flat, result.flat)) else result
            if isinstance(result, list | tuple):
                found = [changed(each) for each in result]
                if all(one is other for one, other in zip(found, result)):
                    return result
                return type(result)(found)
            return result

        return lambda arguments, result: changed(result)

    return Table(rules, {name: everywhere(change) for name, change in changes.items()})


class Program:
    """A program that was traced once."""

    def __init__(self, name):
        fn, *batch = PROGRAMS[name]
        self.parts = Parts(fn, *batch)
        self.outputs, self.expected = self.parts.graph.outputs, self.parts.on_one_device()
        self.tolerance = 1e-5 if name in SINGLE else 1e-12
        self.communicated = COMMUNICATED[name]
        self.types = [set(types_before(output.op)) for output in self.outputs]

    def notices(self, kind, applied):
        """Whether the program fails while the rule of a type is mutated. It runs the outputs that depend on this type."""
        applied[0] = False
        try:
            self.parts.partition()
            if not applied[0] or self.parts.communicated != self.communicated:
                return applied[0]
            used = [number for number, types in enumerate(self.types) if kind in types]
            self.parts.graph.outputs = [self.outputs[number] for number in used]
            self.parts.partition()
            expected = [self.expected[number] for number in used]
            self.parts.check(PARTS, self.tolerance, expected)
        except Exception:
            return True
        finally:
            self.parts.graph.outputs = self.outputs
        return False


def types_before(last):
    """The types of the operations that affect an operation, including those in branches and loops."""
    ahead, found = [last], set()
    while ahead:
        op = ahead.pop()
        if op not in found:
            found.add(op)
            ahead += [*op.control_inputs, *(tensor.op for tensor in op.inputs)]
            yield op.type
            for _, inner in subgraphs(op):
                yield from types_of(inner)


def survivors(table, kind, programs):
    """The mutations of an operation type's rule that have an effect, and those of them that no program detects."""
    rule, made, left = table.rules[kind], 0, []
    for name, mutation in table.mutations.items():
        applied = [False]

        def mutated(*arguments, mutation=mutation, applied=applied):
            result = rule(*arguments)
            found = mutation(arguments, result)
            applied[0] |= found is not result
            return found

        table.rules[kind] = mutated
        changed = False
        for program in programs:
            if program.notices(kind, applied):
                made += 1
                break
            changed |= applied[0]
        else:
            made += changed
            left += [name] * changed
    table.rules[kind] = rule
    return made, left


_SAMPLES = Samples()  # of all arrays of a program
SIZES = Sizes(
    is_size=lambda each: each is None or isinstance(each, int | Size),
    depends=lambda size: isinstance(size, Size),
    plus=lambda size, more: size + more,
    constant=lambda number: number,
    samples=Size.of(_SAMPLES),
    unknown=None,
)
TABLES = [
    label_table(Rules("find_ruling", "label", "terms")),
    size_table(Rules("find_shapes", "shape", "terms"), SIZES),
    size_table(Rules("numbers", "numbers"), SIZES),
]


def main(wanted, tables=TABLES):
    partition_graph.Samples = lambda: _SAMPLES
    programs = sorted(map(Program, PROGRAMS), key=lambda program: len(program.parts.graph.get_operations()))
    made, left = 0, []
    for table in tables:
        for kind in sorted(table.rules.keys() & set(wanted or table.rules.keys())):
            having = [program for program in programs if any(kind in types for types in program.types)]
            count, names = survivors(table, kind, having)
            made += count
            left += [(kind, name) for name in names]
            for name in names:
                reason = EQUIVALENT.get((kind, name), "no program detects it")
                print(f"not noticed: {kind} {name}: {reason}", flush=True)
    same = sum(each in EQUIVALENT for each in left)
    print(f"{made} mutations: {made - len(left)} noticed, {same} equivalent, {len(left) - same} left")


if __name__ == "__main__":
    np.seterr(all="ignore")
    main(sys.argv[1:])
