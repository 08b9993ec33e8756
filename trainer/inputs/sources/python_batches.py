"""Batches from Python code: their structure, and whether they match the first ones."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from ....distribute.arguments import show
from ....state.identity.described_values import checksum
from .. import input_checks
from ..batch import batch_spec, name_parts, unpack
from ..convert import host_arrays, is_array
from ..outside_state import RecordedCalls, explain_drawn_ahead
from ..value_checks import LabelRule, check_values
from .feed import BatchForm, FedSource, form_of


class PythonSource(FedSource):
    """Batches from Python code, converted to one structure, and checked against at most two `first` items, made here."""

    _calls: RecordedCalls
    """The calls of the user's code between batches."""
    _rules: tuple[LabelRule, ...] | None = None

    def __init__(self, kind: str, first: Iterable[Any], steady: bool, sharing: input_checks.Sharing) -> None:
        self._kind, self._sharing = kind, sharing
        with self._calls.note_draws() as drawn_from:
            self._unused = list(first)
        if not self._unused:
            raise ValueError(f"The {kind} yielded no batch: it is empty or exhausted; create a new one.")
        batches = [self._standard(item, number) for number, item in enumerate(self._unused)]
        super().__init__(_common_spec(batches, kind), steady)
        self.usual_batch_size = form_of(batches[0]).size
        self.inexact = explain_drawn_ahead(kind, drawn_from)
        self._known_layouts: set[Any] = set()
        self._checksum = checksum(self._unused)

    def _content(self) -> str | None:
        # An iterator may come from an earlier call, and continue where that has ended.
        return self._checksum if self.rewinds and self.inexact is None else None

    def draws(self) -> bool:
        """Return whether its first batches drew random numbers."""
        return self.inexact is not None

    def find_restored(self) -> Sequence[Any]:
        """Return the generators from which the calls of the user's code between batches draw."""
        return self._calls.find_drawn()

    def check_values(self, rules: tuple[LabelRule, ...]) -> None:
        """Let the thread check each batch."""
        self._rules = rules

    def state(self) -> dict[str, Any]:
        """Return the position, with the calls of the user's code between batches."""
        return {**super().state(), "calls": self._calls.state()}

    def _check_items(self, items: Iterator[Any], first: int) -> Iterator[tuple[Any, BatchForm]]:
        """Yield the batches of these items, of which the first is batch `first` of the epoch."""
        for number, item in enumerate(items, first):
            batch = self._standard(item, number)
            layout = form_of(batch)
            if layout not in self._known_layouts:
                self._check(batch, number)
                if len(self._known_layouts) > 1000:
                    self._known_layouts.clear()
                self._known_layouts.add(layout)
            yield batch, layout

    def _standard(self, item: Any, number: int) -> Any:
        """Return item `number` as a step gets it: a tuple, a dict or one array, of NumPy arrays and tensors."""
        name = f"Batch {number} of the {self._kind}"
        if isinstance(item, list) and self.rewinds:
            item = tuple(item)
        if self._kind == "PyDataset" and is_array(item) and item is not None:
            item = (item,)
        if not (isinstance(item, tuple | dict) or is_array(item)) or item is None or len(item) == 0:
            size = f" of length {len(item)}" if isinstance(item, tuple | list) else ""
            raise ValueError(
                f"{name} is a {type(item).__name__}{size}; a batch must be a tuple (inputs,), (inputs, targets) or "
                "(inputs, targets, sample_weights)."
            )
        where = f"{name} has a {{kind}} as {{place}}; pass arrays."
        parts = [host_arrays(part, value, where) for part, value in name_parts(item)]
        batch = parts[0] if not isinstance(item, tuple) else tuple(parts)
        if hasattr(item, "_fields"):
            batch = type(item)(*parts)
        try:
            input_checks.same_samples(batch, self._sharing)
            if self._rules is not None:
                _, y, sample_weight = unpack(batch)
                check_values(sample_weight, y, self._rules)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
        return batch

    def _check(self, batch: Any, number: int) -> None:
        """Reject a batch that differs in structure, dtype or shape from the first ones."""
        try:
            tf.nest.assert_same_structure(self._signature, batch)
        except (TypeError, ValueError):
            raise ValueError(
                f"Batch {number} of the {self._kind} differs in structure from the first: {show(batch_spec(batch))}, not "
                f"{show(self._signature)}."
            ) from None
        for (name, part), (_, specs) in zip(name_parts(batch_spec(batch)), name_parts(self._signature)):
            leaves = tf.nest.flatten(part)
            for index, (found, spec) in enumerate(zip(leaves, tf.nest.flatten(specs))):
                where = name if len(leaves) == 1 else f"array {index} of {name}"
                if found is spec is None or (spec is not None and spec.is_compatible_with(found)):
                    continue
                raise ValueError(
                    f"{where} of batch {number} of the {self._kind} is {show(found)}, but the first batches have "
                    f"{show(spec)}; every batch must have the same dtypes and, except for the samples, the same "
                    "shapes (a dimension may vary if the first two batches differ in it)."
                )


def _common_spec(batches: list[Any], kind: str) -> Any:
    """Return the common spec of the first batches, of one structure, rank and dtype; varying dimensions are None."""
    specs = [batch_spec(batch) for batch in batches]
    result = specs[0]
    for number, spec in enumerate(specs[1:], 1):
        try:
            result = tf.nest.map_structure(_merge, result, spec)
        except (TypeError, ValueError):
            raise ValueError(
                f"Batch {number} of the {kind} is {show(spec)}, but the first batch is {show(specs[0])}."
            ) from None
    return result


def _merge(a: Any, b: Any) -> Any:
    if a is None and b is None:
        return None
    merged = a.most_specific_common_supertype([b]) if a is not None and b is not None else None
    if merged is None or getattr(merged, "shape", tf.TensorShape([])).rank is None:
        raise ValueError
    return merged
