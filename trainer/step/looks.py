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
HOLES = 1  # batches with other zeros


def with_holes(batch: Any, number: int) -> Any:
    """The batch with zeros in place of some of its numbers, more in one row than in another; which ones tells `number`.

    A mean over what is not masked is one over all rows as long as the first batches have no padding.
    """
    random = np.random.default_rng(number)

    def with_zeros(leaf: Any) -> Any:
        if not isinstance(leaf, tf.Tensor) or not leaf.shape.rank:
            return leaf
        if not (leaf.dtype.is_floating or leaf.dtype.is_integer or leaf.dtype.is_bool):
            return leaf
        kept = np.linspace(0.2, 1.0, leaf.shape[0]).reshape([-1, *[1] * (leaf.shape.rank - 1)])
        return tf.where(random.uniform(size=leaf.shape) < kept, leaf, tf.zeros_like(leaf))

    return tf.nest.map_structure(with_zeros, batch)


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
        cut = max(1, rows // 3)
        first_trace = self.whole(batch, 0, rows, rows, states, times)
        known = [tf.constant(value) for value in first_trace["exchanged"]]
        whole = self._part(batch, 0, rows, rows, states, times, known)
        first = self._part(slice_units(batch, 0, cut, rows), 0, cut, rows, states, times, known)
        last = self._part(slice_units(batch, cut, rows, rows), cut, rows, rows, states, times, known)
        return Seen(first_trace if one is None else one, whole, first, last, cut / rows, self._tolerance)

    def twice(self, batch: Any, rows: int, states: Sequence[np.ndarray]) -> list[dict[Any, Any]]:
        """What is noted for the rows once and for the same rows twice: on one device and as a replica, each."""
        result: list[Any] = []
        for times in (1, 2):
            repeated = concat_rows([batch] * times)
            one = self.whole(repeated, 0, rows * times, rows * times, states)
            known = [tf.constant(value) for value in one["exchanged"]]
            result += [one, self._part(repeated, 0, rows * times, rows * times, states, AS_IT_IS, known)]
        return [each["notes"] for each in result]
