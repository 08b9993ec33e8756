"""What one batch shows of a step that is looked at: as it is, with less in it, with larger counts, once and twice."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ...distribute.join_rules import ACROSS_ROWS, SUM, WriteRule
from .compared_parts import Seen, another, degree, much_later, unchanged, write_rule
from .earlier_joins import Case
from .looks import Looks
from .thinned import thinned

_LATER = (1, 1000)  # by which counts and weights of losses are larger, to see parts that begin later

_log = logging.getLogger("unisono")


class ShownBatch:
    """Some rows of a batch, and what the traces of a step have shown with them; further looks are taken when asked for.

    Args:
        looks: the traces.
        case: the rows, their number, and the values of the states.
        seen: what they show, where it is known.
    """

    def __init__(self, looks: Looks, case: Case, seen: Seen | None = None) -> None:
        self._looks, self.case = looks, case
        self._write_rules: dict[Any, dict[int, WriteRule | None]] = {}
        self.seen = looks.seen(*case) if seen is None else seen

    @functools.cached_property
    def thin(self) -> list[tuple[Case, Seen]]:
        """What is seen of the batch with less in it, and of what; nothing where the code refuses that."""
        batch, rows, values = self.case
        case = thinned(batch), rows, values
        with contextlib.suppress(tf.errors.OpError):
            return [(case, self._looks.seen(*case))]
        return []

    @functools.cached_property
    def later(self) -> list[Seen]:
        """What is seen with larger counts and weights, as a part of a loss may begin later, and with less in the batch."""
        batch, rows, values = self.case
        result = []
        for steps in _LATER:
            others = [much_later(value, steps) for value in values]
            if all(value is other for value, other in zip(values, others)):
                break
            with contextlib.suppress(tf.errors.OpError):
                result.append(self._looks.seen(batch, rows, others))
        return [*result, *(seen for _, seen in self.thin)]

    @functools.cached_property
    def nearest(self) -> dict[Any, tuple[str, np.ndarray | None]]:
        """Whether what is noted grows with the rows, and what of it does not: the same rows once and twice are compared."""
        one, once, _, twice = self._looks.twice(*self.case)
        rules = {key: degree(one[key], once[key], twice[key]) for key in one if key in once}
        return {
            key: (rule, 2 * once[key] - twice[key] if rule == SUM else None) for key, rule in rules.items()
        }

    def looks_across_if_thin(self, key: Any) -> bool:
        """Whether no rule joins a number where less is in the batch."""
        return any(seen.rule(key) == ACROSS_ROWS for _, seen in self.thin)

    def looks_across_later(self, key: Any) -> bool:
        """The same, also with larger counts and weights."""
        return any(seen.rule(key) == ACROSS_ROWS for seen in self.later)

    def write_rules(self, written: Sequence[tuple[int, int]]) -> dict[int, WriteRule | None]:
        """The rules of states, from what the step writes with their values and with others; None where none holds.

        Args:
            written: the number of each among what the step writes, and its place among the states.

        Returns:
            By its place; without those to which nothing new is written.
        """
        asked = tuple(written)
        if asked and asked not in self._write_rules:
            batch, rows, values = self.case
            others = [another(value) for value in values]
            for number, place in written:  # as large as what is added, so that both keep their digits
                others[place] = another(values[place], size=_largest(self.seen.writes(number)[0]))
            cases = [(values, self.seen)]
            try:
                cases.append((others, self._looks.seen(batch, rows, others)))
            except tf.errors.OpError:
                _log.info("The state of layers was looked at with its present values only.")
            self._write_rules[asked] = self._rules_of(written, cases)
        return self._write_rules.get(asked, {})

    def _rules_of(
        self, written: Sequence[tuple[int, int]], cases: Sequence[tuple[Any, Seen]]
    ) -> dict[int, WriteRule | None]:
        each = {
            place: [(old[place], *seen.writes(number)) for old, seen in cases] for number, place in written
        }
        return {
            place: write_rule(values, self.seen.share, self.seen.tolerance)
            for place, values in each.items()
            if not unchanged(values)
        }


def _largest(value: np.ndarray) -> float:
    return float(np.abs(value).max(initial=0.0)) if value.dtype.kind == "f" else 0.0
