"""What a step computes on real rows as one device does, and as replicas do that hold parts of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ...distribute.join_rules import JoinRules
from ..inputs.row_units import slice_units
from ..inputs.rows import concat_rows
from .compared_parts import Seen
from .observed_step import ObservedStep

AS_IT_IS = 1.0
_CUTS = (2, 4, 1, 5)  # sixths of the rows: no two parts are as large


class Looks:
    """A step that is only looked at, in two traces: as one device computes it, and as one of two replicas does.

    Args:
        make: `make(known=, at_tape=, rules=)` traces the step; see `ObservedStep`.
        tolerance: relative; what is equal within it is the same.
        at_tape: whether gradients are joined where they are taken.
        rules: those that are known before.
        first: the first trace, where it is there; None: it is made.

    Attributes:
        whole: the first trace.
    """

    def __init__(
        self,
        make: Callable[..., ObservedStep],
        tolerance: float,
        at_tape: bool = False,
        rules: JoinRules | None = None,
        first: ObservedStep | None = None,
    ) -> None:
        self._tolerance = tolerance
        self.whole = first or make(at_tape=at_tape, rules=rules)
        self._part = make(known=self.whole.exchanged, at_tape=at_tape, rules=rules)

    def seen(
        self, batch: Any, rows: int, states: Sequence[np.ndarray], times: float = AS_IT_IS, one: Any = None
    ) -> Seen:
        """What is noted for these rows, and for two parts of them.

        Args:
            batch: nest of tensors `[rows, ...]`.
            rows: int, at least 2.
            states: values of the states.
            times: what the gradients are multiplied with that tapes give.
            one: what is noted on one device, where other traces have shown it; None: what the first trace shows.
        """
        first_trace = self.whole(batch, 0, rows, rows, states, times)
        known = [tf.constant(value) for value in first_trace["exchanged"]]
        whole = self._part(batch, 0, rows, rows, states, times, known)
        one, found = first_trace if one is None else one, None
        for cut in dict.fromkeys(max(1, rows * part // 6) for part in _CUTS):
            first = self._part(slice_units(batch, 0, cut, rows), 0, cut, rows, states, times, known)
            last = self._part(slice_units(batch, cut, rows, rows), cut, rows, rows, states, times, known)
            seen = Seen(one, whole, first, last, cut / rows, self._tolerance)
            if not seen.in_one_part(one["notes"]):
                return seen
            found = found or seen
        assert found is not None
        return found

    def twice(self, batch: Any, rows: int, states: Sequence[np.ndarray]) -> list[dict[Any, Any]]:
        """What is noted for the rows once and for the same rows twice: on one device and as a replica, each."""
        result: list[Any] = []
        for times in (1, 2):
            repeated = concat_rows([batch] * times)
            one = self.whole(repeated, 0, rows * times, rows * times, states)
            known = [tf.constant(value) for value in one["exchanged"]]
            result += [one, self._part(repeated, 0, rows * times, rows * times, states, AS_IT_IS, known)]
        return [each["notes"] for each in result]
