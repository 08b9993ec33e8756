"""What is noted while a step is looked at: the numbers that leave it, and what stands in for the other replicas."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.edges import number_of
from ...compat.layers import holds_own_code
from ...compat.pruning import only_computes, operations_behind
from ...compat.strategies import pretending_replicas
from ...distribute.join_rules import LARGEST, MEAN, SAME, SMALLEST
from ...distribute.step_context import StepContext, step_scope, this_step
from ...optimizers.stages.slices import map_values, values_of
from ..inputs.row_units import slice_units
from ..inputs.rows import row_count
from .bends import bends
from .kept_tensors import kept_rows_become
from .mixed_rows import mixed_in
from .number_parts import parts_of, rule_by_form

PARTS = 2  # replicas that are played


class Observed:
    """See `Observer`. Owns what was noted in one trace.

    Args:
        known: what the replicas exchanged, in order; None: this is the trace that learns it.
        split: int32 scalar; the rows of the first of two parts in which a loss is computed again; None: it is not.
        own: the placeholders of what is not the same on all replicas.
        times: float64 scalar; what the gradients are multiplied with that tapes give; None: they are left as they are.
        at_tape: whether replicas exchange these gradients.
        layers: the layers of the model; what is made outside of them is nobody's.

    Attributes:
        changed: whether an optimizer was given other gradients than tapes gave.
        nested: whether a tape gave gradients inside of a function, branch or loop, where replicas cannot meet.
        fed_to: the names of the metrics that are fed, by the number of what they are fed with.
        bent: the numbers that are joined by a rule only where rows are alike; see `bends.py`.
        statistics: the names of the operations that make statistics of rows (`mixed_in`), each with the innermost layer of
            the model in which it is; None where there is no such layer.
        may_mix: the layers that hold code of the user's own and may bring rows together in another manner.
        row_layers: those layers whose outputs are noted, in the order in which their calls have ended.
        direct_statistics: those of them that outputs do not have from state alone that was written before.
        differing: the numbers that are computed of others than what is the same on all replicas.
        rules_of_parts: of those parts of numbers whose rule is seen without their values.
    """

    def __init__(
        self,
        known: Sequence[tf.Tensor] | None = None,
        split: tf.Tensor | None = None,
        own: Sequence[tf.Tensor] = (),
        times: tf.Tensor | None = None,
        at_tape: bool = False,
        layers: Sequence[Any] = (),
    ) -> None:
        self._layers = {id(layer): holds_own_code(layer) for layer in layers}
        self._times, self._at_tape, self._given = times, at_tape, dict[int, Any]()
        self.changed = self.nested = self._in_branch = False
        self._known = None if known is None else list(known)
        self._split, self._own = split, own
        self._same: dict[int, tf.Tensor] = {}
        self.fed_to: dict[int, str] = {}
        self.exchanged: list[tf.Tensor] = []
        self.notes: dict[Any, Any] = {}
        self.rules_of_parts: dict[Any, str] = {}
        self.statistics: list[tuple[str, Any]] = []
        self.direct_statistics: list[tuple[str, Any]] = []
        self.row_layers: list[Any] = []
        self.may_mix: list[Any] = []
        self._written: dict[int, tf.Tensor] = {}
        self._calls: list[tuple[Any, float, float]] = []
        self.bent: set[tuple[Any, ...]] = set()
        self.differing: set[tuple[Any, ...]] = set()
        self.entries = False
        self.without_rows: list[int] = []

    def sums(self, tensors: Sequence[Any]) -> list[Any]:
        """The sums over all replicas."""
        tensors = [tf.convert_to_tensor(tensor) for tensor in tensors]
        return [self._of_all(tensor, tensor.shape) for tensor in tensors]

    def rows(self, own: tf.Tensor) -> tf.Tensor:
        """The rows of all replicas."""
        return self._of_all(own, [None, *own.shape[1:]] if own.shape.rank else [])

    def _of_all(self, own: tf.Tensor, shape: Any) -> tf.Tensor:
        value = tf.stop_gradient(own)
        if self._known is not None:
            value = tf.ensure_shape(self._known[len(self.exchanged)], shape)
        self.exchanged.append(value)
        self.same(value)
        return value

    def _of_all_replicas(self, gradient: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            values, indices = self.rows(gradient.values), self.rows(gradient.indices)
            return tf.IndexedSlices(values, indices, gradient.dense_shape)
        return self._of_all(gradient, gradient.shape)

    def same(self, value: tf.Tensor) -> None:
        """Is told of a tensor that is the same on every replica."""
        self._same[id(value)] = value

    def note(self, what: Any, value: Any) -> None:
        """Notes a number that leaves the replica."""
        if not isinstance(value, tf.Tensor | tf.IndexedSlices) or value.dtype in (tf.string, tf.variant):
            return
        if what[0] == "log" and self._is_same(value):
            self.notes["same log", what[1]] = tf.ones([])
        self.notes[what] = sketch(value)

    def fed(self, kind: str, number: int, value: tf.Tensor, metric: Any) -> str | None:
        """Notes what a metric is updated with, its size, and whether it is the same on every replica.

        Returns the rule of a tensor that cannot have this replica's rows, for the step that is looked at. What has rows is
        noted where it is only computed: a message, say, would keep the whole step from being looked at.
        """
        self.fed_to[number] = metric.name
        same = self._is_same(value)
        if value.shape.rank != 0:
            if not (same or only_computes(operations_behind([value]))):
                return None
            self.note(("size", number), tf.size(value))
        if same:
            self.note(("same", number), tf.ones([]))
        self.note((kind, number), value)
        known = value.shape.rank and value.shape[0] is not None
        return SAME if same else MEAN if known else None

    def _is_same(self, value: tf.Tensor) -> bool:
        """Whether a tensor is computed from constants, variables and what replicas exchange alone."""
        if tf.is_tensor(value) and hasattr(value, "numpy"):  # it was there before the step
            return True
        if not self._own or not _is_in(self._own[0].graph, value):
            return False
        behind = operations_behind([value], self._same)
        return only_computes(behind) and not any(tensor.op in behind for tensor in self._own)

    def reaches(self, value: Any) -> bool:
        """Whether a tensor is in the step's own graph, not in that of a branch or loop."""
        return self._times is None or value.graph is self._times.graph

    def computed(self, what: tuple[Any, ...], value: Any, step: StepContext) -> None:
        """Notes the numbers of which a number is computed."""
        if self._times is None or not _is_in(self._times.graph, value):
            return
        differ = []
        for place, part in enumerate(parts_of(value, step, of_any_shape=what[0] == "write")):
            self.note(("part", *what, place), part)
            rule = SAME if self._is_same(part) else rule_by_form(part)
            if rule in (LARGEST, SMALLEST):  # which is linear in nothing
                self.notes["part", *what, place] = tf.cast(tf.reshape(part, [-1]), tf.float64)
            if rule is not None:
                self.rules_of_parts["part", *what, place] = rule
            if rule != SAME:
                differ.append(part)
        if what in step.rules.parts:
            return
        if differ:
            self.differing.add(what)
        if bends([value], [*differ, *self._each_its_own], self._same):
            self.bent.add(what)

    def forget(self, what: tuple[Any, ...]) -> None:
        """Drops what was noted of a number: it has become another."""
        self.notes.pop(what, None)
        for key in [key for key in self.notes if key[0] == "part" and key[1:-1] == what]:
            del self.notes[key]
            self.rules_of_parts.pop(key, None)
        self.bent.discard(what)
        self.differing.discard(what)

    @property
    def _each_its_own(self) -> list[tf.Tensor]:
        """The gradients that tapes gave, where they are those of a replica's rows."""
        return [] if self._at_tape else [values_of(g) for g in self._given.values()]

    def taken(self, number: int, gradients: list[Any]) -> list[Any]:
        """Notes the gradients of variables that a tape has given; returns what the step goes on with."""
        present = [g for g in gradients if g is not None]
        if not present or self._times is None:
            return gradients
        self.nested = self.nested or not self.reaches(values_of(present[0]))
        if self.nested:
            return gradients
        self.notes["tape", number] = tf.concat([sketch(g) for g in present], 0)
        if self._at_tape:
            present = [self._of_all_replicas(g) for g in present]
        times = self._times
        present = [map_values(lambda v: v * tf.cast(times, v.dtype), g) for g in present]
        self._given.update({id(g): g for g in present})
        rest = iter(present)
        return [None if g is None else next(rest) for g in gradients]

    @contextlib.contextmanager
    def in_branch(self) -> Iterator[None]:
        """Inside, both branches of a condition are computed."""
        outer, self._in_branch = self._in_branch, True
        try:
            yield
        finally:
            self._in_branch = outer

    def given(self, number: int, gradients: Sequence[Any]) -> None:
        """Is told what an optimizer is given in this call."""
        if self._in_branch:  # where replicas cannot meet: it must be the same on each of them
            self.notes["in branch", number] = tf.ones([])
        changed = [g for g in gradients if id(g) not in self._given]
        if changed and bends([values_of(g) for g in changed], self._each_its_own, self._same):
            self.bent.add(("gradients", number))
        self.changed = self.changed or bool(changed)

    def loss(self, value: tf.Tensor, loss_of: Callable[..., tf.Tensor], rows: Any) -> None:
        """Notes a loss of the user's own, and what it is for each of two parts of the same outputs."""
        self.note(("loss",), value)
        self.entries = value.shape.rank != 0
        parts = parts_of(value, this_step()) if self._times is not None else []
        if bends([value], [part for part in parts if not self._is_same(part)], self._same):
            self.bent.add(("loss",))
        leaves = keras.tree.flatten(rows)
        self.without_rows = [number for number, leaf in enumerate(leaves) if _has_no_rows(leaf)]
        if self._split is None:
            return
        total = row_count([leaf for leaf in leaves if not _has_no_rows(leaf)])
        whole = Observed()
        self._loss_of_part("whole", whole, loss_of, rows, 0, total, total)
        for name, first, last in (("first", 0, self._split), ("last", self._split, total)):
            self._loss_of_part(name, Observed(whole.exchanged), loss_of, rows, first, last, total)

    def gathers(self, outputs: Sequence[Any]) -> None:
        """Notes outputs that have other rows than the batch: are those of the parts, one after the other, the whole?"""
        step = this_step()
        for output in outputs:
            if isinstance(output, tf.Tensor) and output.dtype.is_floating and output.shape.rank:
                rows = tf.shape(output)[0]
                each = tf.size(output) // tf.maximum(step.rows, 1)
                noted = sketch(output, step.rows_before * each)
                others = tf.cast(tf.not_equal(rows, step.rows), noted.dtype)
                self.notes["order", step.count("gathered outputs")] = noted * others

    def outputs(self, y_pred: Any) -> None:
        """Is told of the outputs of the model."""
        rows = [each for each in self._own if each.shape.rank != 0]
        leaves = [
            each for each in keras.tree.flatten(y_pred) if self._own and _is_in(self._own[0].graph, each)
        ]
        found = mixed_in(leaves, rows, self._same)
        self.statistics = self._with_layers(found.statistics)
        layers = {id(layer): layer for _, layer in self._with_layers(found.maybe)}
        self.may_mix = [layer for key, layer in layers.items() if self._layers.get(key)]
        if self.statistics:
            known = {**self._same, **self._written}
            self.direct_statistics = self._with_layers(mixed_in(leaves, rows, known).statistics)

    def _with_layers(self, operations: Sequence[tf.Operation]) -> list[tuple[str, Any]]:
        result = []
        for op in operations:
            inside = [(first, layer) for layer, first, end in self._calls if first <= number_of(op) < end]
            result.append((op.name, max(inside, key=lambda each: each[0])[1] if inside else None))
        return result

    def written(self, value: tf.Tensor) -> None:
        """Is told of a value that was assigned to a state."""
        self._written[id(value)] = value

    def called(self, layer: Any, outputs: Any, graph: Any, first: float, end: float) -> None:
        """Notes which operations were made for a layer, and the rows that came out."""
        if not self._own or graph is not self._own[0].graph or id(layer) not in self._layers:
            return
        self._calls.append((layer, first, end))
        step = this_step()
        noted = self._layers[id(layer)] and not self._at_tape
        for output in keras.tree.flatten(outputs) if noted else ():
            if _is_in(graph, output) and output.dtype.is_floating and not output.shape.is_fully_defined():
                each = tf.size(output) // tf.maximum(step.rows, 1)
                self.notes["rows", len(self.row_layers)] = sketch(output, step.rows_before * each)
                self.row_layers.append(layer)

    def _part_of(self, rows: Any, first: Any, last: Any, total: Any) -> Any:
        leaves = keras.tree.flatten(rows)
        parts = [leaf if _has_no_rows(leaf) else slice_units(leaf, first, last, total) for leaf in leaves]
        return keras.tree.pack_sequence_as(rows, parts)

    def _loss_of_part(
        self, name: str, observer: Observed, loss_of: Any, rows: Any, first: Any, last: Any, total: Any
    ) -> None:
        step = StepContext(0, PARTS, last - first, total, first_row=first, observer=observer)
        own_rows = kept_rows_become(lambda kept: kept[first:last], total)
        with step_scope(step), pretending_replicas(PARTS), own_rows:
            try:
                value = loss_of(*self._part_of(rows, first, last, total))
            except Exception:  # it holds on to numbers of the whole batch: the parts cannot be told
                return
        self.note(("loss", name), value)


def _is_in(graph: Any, value: Any) -> bool:
    return isinstance(value, tf.Tensor) and not hasattr(value, "numpy") and value.graph is graph


def _has_no_rows(value: Any) -> bool:
    """Whether a tensor has a length that is known, where the rows of the batch are not."""
    return isinstance(value, tf.Tensor) and bool(value.shape.rank) and value.shape[0] is not None


def sketch(value: Any, first: Any = 0) -> tf.Tensor:
    """Two numbers that are linear in those of `value`: what is a sum, a mean, ... of tensors is one of these.

    `first`: the place of its first number among those that are compared.
    """
    if isinstance(value, tf.IndexedSlices):
        flat = tf.reshape(value.values, [tf.size(value.indices), -1])
        width = tf.shape(flat, tf.int64)[1]
        place = tf.cast(value.indices, tf.int64)[:, None] * width + tf.range(width)[None]
    else:
        flat = tf.reshape(value, [-1])
        place = tf.range(tf.size(flat, tf.int64)) + tf.cast(first, tf.int64)
    numbers, place = tf.cast(flat, tf.float64), tf.cast(place, tf.float64)
    return tf.stack([tf.reduce_sum(numbers * tf.cos(w * place + b)) for w, b in ((0.7, 0.2), (1.3, 1.1))])
