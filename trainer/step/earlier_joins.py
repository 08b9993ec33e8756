"""Numbers that are joined before the code of a step is done with them, where what it hands back cannot be joined.

There are two places in which the replicas can meet earlier: where a tape gives gradients, which are then those of the
global batch (`tape_gradients.py`), and at the numbers of which another one is computed (`number_parts.py`). Each way is
tried on real rows, in traces that are only looked at: it is taken if what comes out is what one device has.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from ...distribute.join_rules import ACROSS_ROWS, LARGEST, MEAN, OF_REPLICAS, SMALLEST, JoinRules
from .compared_parts import Seen
from .looks import AS_IT_IS, Looks

MUCH = 1e6
"""Times the gradients: what is clipped later is clipped now."""

Case = tuple[Any, int, Any]
"""Batch, rows and states."""

Parts = Mapping[tuple[Any, ...], Sequence[str | None]]

_log = logging.getLogger("unisono")


class Way(NamedTuple):
    """A way of joining, and what is seen then.

    Attributes:
        looks: the traces of the step that joins so.
        seen: of the batch.
        tapes: the rules of the gradients that tapes give, where they are joined there; else empty.
        parts: see `JoinRules`.

    A rule is None where what it is of is zero on all rows. Any will do for these rows; others have to show it.
    """

    looks: Looks
    seen: Seen
    tapes: list[str | None]
    parts: Parts


def find_way(
    looks: Looks,
    make: Callable[..., Looks],
    cases: Sequence[tuple[Case, Seen]],
    numbers: Sequence[Any],
    added: Mapping[tuple[int, int], str],
    in_graph: bool,
) -> Way | None:
    """The way in which most of the noted numbers are joined exactly, all gradients among them; None: as they are.

    Args:
        looks: the step as it is.
        make: `make(at_tape=, rules=)`: the step that joins earlier.
        cases: what the step is looked at with, and what is seen then; the real rows first.
        numbers: the keys of all numbers that the step hands back.
        added: the rules of the losses that layers add.
        in_graph: whether the step will run in a graph: else a number is not known by what it was computed of.
    """
    gradients = [key for key in numbers if key[0] == "gradients"]
    before = [(case, seen, AS_IT_IS) for case, seen in cases]
    real = cases[0][0]
    if looks.whole.changes_gradients:
        with contextlib.suppress(tf.errors.OpError):  # the step does not compute with gradients as large
            before.append((real, looks.seen(*real, MUCH), MUCH))
    missing = _missing(looks, before, numbers, gradients, {})
    if not missing or looks.whole.random:
        return None
    best: Way | None = None
    for at_tape, parts in _candidates(looks, cases, numbers, in_graph):
        try:
            other = make(at_tape=at_tape, rules=JoinRules(parts=known_parts(parts), added=added))
            after = [(case, other.seen(*case, times, each.one), times) for case, each, times in before]
        except Exception as error:
            _log.info("What a step computes could not be joined earlier: %r", error)
            continue
        calls = [key[1] for key in other.whole.noted if key[0] == "tape"] if at_tape else []
        tapes = [("tape", number) for number in range(max(calls, default=-1) + 1)]
        now = after[0][1]
        if any(each.looks_across([*gradients, *tapes]) for _, each, _ in after):
            continue
        left = _missing(other, after, numbers, gradients, parts)
        if left < missing:
            best, missing = Way(other, now, [now.rule(key) for key in tapes], parts), left
        if not left:
            break
    return best


def known_parts(parts: Parts) -> dict[tuple[Any, ...], tuple[str, ...]]:
    """The rules of parts, as far as they are known; the others are means."""
    return {number: tuple(rule or MEAN for rule in rules) for number, rules in parts.items()}


def _missing(
    looks: Looks,
    cases: Sequence[tuple[Case, Seen, float]],
    numbers: Sequence[Any],
    gradients: Sequence[Any],
    parts: Parts,
) -> int:
    """How many numbers no rule joins, now or where rows differ more; where gradients are larger they are what counts."""
    across = {
        key
        for _, seen, times in cases
        for key in seen.looks_across(numbers if times == AS_IT_IS else gradients)
    }
    return len(across | (_doubtful(looks, cases[0][1]) - set(parts)))


def _doubtful(looks: Looks, seen: Seen) -> set[Any]:
    """The numbers that a rule joins where rows are as those that were seen, and not where they are others."""
    with_parts = [key for key in looks.whole.noted if key[0] in ("tape", "fed", "added", "log")]
    return {*looks.whole.bent, *seen.in_one_part(with_parts)}


def _candidates(
    looks: Looks, cases: Sequence[tuple[Case, Seen]], numbers: Sequence[Any], in_graph: bool
) -> Iterator[tuple[bool, Parts]]:
    tapes = [key for key in looks.whole.noted if key[0] == "tape"]
    of_numbers = [key for key in numbers if key[0] != "gradients"]
    known = [*tapes, *of_numbers]
    across = _doubtful(looks, cases[0][1]).union(*(seen.looks_across(known) for _, seen in cases))
    doubted = [key for key in known if key in across]
    parts = joinable_parts(looks, [seen for _, seen in cases], doubted) if in_graph else {}
    added = {key: rules for key, rules in parts.items() if key[0] == "added"}
    others = {key: rules for key, rules in parts.items() if key[0] != "added"}
    # What a layer adds is a part of the loss whose gradient is taken: joined, it may be all that it takes.
    each = [some for some in (added, others, parts if added and others else {}) if some]
    yield from ((False, some) for some in each)
    if looks.whole.takes_gradients:
        yield from ((True, some) for some in ({}, *each))


def joinable_parts(looks: Looks, cases: Sequence[Seen], numbers: Sequence[Any]) -> Parts:
    """The rules of the parts of those numbers that have parts, each of which one rule joins in all cases."""
    found: dict[tuple[Any, ...], list[str | None]] = {}
    for number in numbers:
        noted = [key for key in looks.whole.noted if key[0] == "part" and key[1:-1] == number]
        noted.sort(key=lambda key: key[-1])
        each = [{rule_of_part(key, looks, seen) for seen in cases} - {None} for key in noted]
        rules = [next(iter(known), None) for known in each]
        if rules and all(len(known) < 2 for known in each) and not {ACROSS_ROWS, *OF_REPLICAS} & {*rules}:
            found[number] = rules
    return found


def rule_of_part(key: tuple[Any, ...], looks: Looks, seen: Seen) -> str | None:
    """The rule of a part of a number; None: it is zero on all rows, so that it cannot be told."""
    rule = looks.whole.rules_of_parts.get(key)
    if rule in (LARGEST, SMALLEST):
        return rule if seen.is_extreme(key, rule) else ACROSS_ROWS
    return rule or seen.rule(key)
