"""A step that is only looked at: traced as one replica would compute it, pruned to its numbers, and never applied.

The graph holds what the numbers depend on and nothing else: no write, no message to the host, no draw from an input. Two
traces are made of it. The first computes on all rows, as one device does. The second is one of two replicas, which is
told what the first one learned from "all replicas" (totals, gathered rows).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.layers import layers_of, statistics_of_all_rows
from ...compat.pruning import Pruned, only_computes, operations_behind, prune_to
from ...compat.strategies import LookedAtReplica, pretending_replicas
from ...compat.training import unpack_x_y_sample_weight
from ...distribute.join_rules import MEAN, SAME, JoinRules
from ...distribute.step_context import StepContext, step_scope, this_step
from ...distribute.workers.agreement import first_local_replica
from ...optimizers.stages.slices import map_values, values_of
from ..inputs.row_units import slice_units
from ..inputs.rows import row_count
from .bends import bends
from .collected_writes import CollectedWrites, WriteInNestedGraph
from .global_metrics import metrics_of, variable_ids
from .global_regularizers import whole_batch_values
from .kept_tensors import kept_rows_become, tensors_kept_by
from .number_parts import parts_of, rule_by_form
from .observed_draws import draw_alike
from .step_loss import loss_on_replica
from .train_step import forward, part_of_logs

PARTS = 2  # replicas that are played


class Observed:
    """See `Observer`. Owns what was noted in one trace.

    Args:
        known: what the replicas exchanged, in order; None: this is the trace that learns it.
        split: int32 scalar; the rows of the first of two parts in which a loss is computed again; None: it is not.
        own: the placeholders of what is not the same on all replicas.
        times: float64 scalar; what the gradients are multiplied with that tapes give; None: they are left as they are.
        at_tape: whether replicas exchange these gradients.

    Attributes:
        changed: whether an optimizer was given other gradients than tapes gave.
        nested: whether a tape gave gradients inside of a function, branch or loop, where replicas cannot meet.
        fed_to: the names of the metrics that are fed, by the number of what they are fed with.
        bent: the numbers that are joined by a rule only where rows are alike; see `bends.py`.
        rules_of_parts: of those parts of numbers whose rule is seen without their values.
    """

    def __init__(
        self,
        known: Sequence[tf.Tensor] | None = None,
        split: tf.Tensor | None = None,
        own: Sequence[tf.Tensor] = (),
        times: tf.Tensor | None = None,
        at_tape: bool = False,
    ) -> None:
        self._times, self._at_tape, self._given = times, at_tape, dict[int, Any]()
        self.changed = self.nested = self._in_branch = False
        self._known = None if known is None else list(known)
        self._split, self._own = split, own
        self._same: dict[int, tf.Tensor] = {}
        self.fed_to: dict[int, str] = {}
        self.exchanged: list[tf.Tensor] = []
        self.notes: dict[Any, Any] = {}
        self.rules_of_parts: dict[Any, str] = {}
        self.bent: set[tuple[Any, ...]] = set()
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
        self.notes[what] = _sketch(value)

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
        for place, part in enumerate(parts_of(value, step)):
            self.note(("part", *what, place), part)
            rule = SAME if self._is_same(part) else rule_by_form(part)
            if rule is not None:
                self.rules_of_parts["part", *what, place] = rule
            if rule != SAME:
                differ.append(part)
        if what not in step.rules.parts and bends([value], [*differ, *self._each_its_own], self._same):
            self.bent.add(what)

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
        self.notes["tape", number] = tf.concat([_sketch(g) for g in present], 0)
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
                sketch = _sketch(output, step.rows_before * each)
                others = tf.cast(tf.not_equal(rows, step.rows), sketch.dtype)
                self.notes["order", step.count("gathered outputs")] = sketch * others

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


def _sketch(value: Any, first: Any = 0) -> tf.Tensor:
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


class ObservedStep:
    """One trace of a step. Its call computes what is noted, on given rows.

    Args:
        model: built.
        step_fn: `fn(data) -> logs`; see `looked_at`.
        spec: nest of `tf.TypeSpec` of a batch.
        states: variables of layers whose values are given.
        own_logs: whether the step returns logs that are not the results of metrics.
        known: None for the trace that computes on all rows; else the tensors that it exchanged.
        at_tape: whether gradients are joined where a tape gives them.
        rules: those that are known before; None: none is.

    Attributes:
        changes_gradients: whether an optimizer is given other gradients than tapes gave, and replicas could meet at these.
        writes: the variables that the step writes, beside those of metrics.
        reads: those that it reads, these too.
        entries: whether a loss of the user's own has an entry for each row.
        without_rows: see `JoinRules`.
        noted: what is noted, in order.
        takes_gradients: whether tapes give gradients of variables, at which replicas could meet.
        fed_to: see `Observed`.
        rules_of_parts: see `Observed`.
        bent: see `Observed`.
        exchanged: the tensors that replicas exchange; their specs are what the other trace is given.
        random: whether numbers are drawn in it for which nothing stands in (`observed_draws.py`).

    Raises:
        Whatever the user's code raises while it is traced; RuntimeError where it cannot be computed without side effects.
    """

    def __init__(
        self,
        model: TrainedModel,
        step_fn: Callable[[Any], Any],
        spec: Any,
        states: Sequence[keras.Variable],
        own_logs: bool,
        known: Sequence[tf.Tensor] | None = None,
        at_tape: bool = False,
        rules: JoinRules | None = None,
    ) -> None:
        self._model, self._step_fn, self._spec, self._at_tape = model, step_fn, spec, at_tape
        self._rules = rules or JoinRules()
        self._states, self._own_logs, self._whole = states, own_logs, known is None
        self.writes: list[keras.Variable] = []
        self.reads: list[keras.Variable] = []
        self.exchanged: list[tf.Tensor] = []
        self.entries, self.noted, self.without_rows, self.fed_to, self.rules_of_parts = False, [], [], {}, {}
        self.bent: set[tuple[Any, ...]] = set()
        self.changes_gradients = self.takes_gradients = False
        leaves = _leaves(spec)
        exchanged = [
            tf.TensorSpec([None, *t.shape[1:]] if t.shape.rank else [], t.dtype) for t in known or ()
        ]
        number = tf.TensorSpec([], tf.int32)
        signature = [
            *[tf.TensorSpec(leaf.shape, leaf.dtype) for leaf in leaves],
            *[number] * 4,
            tf.TensorSpec([], tf.float64),
            *[tf.TensorSpec(v.shape, v.dtype) for v in states],
            *exchanged,
        ]
        self._counts = (len(leaves), 5, len(states))
        self._function: Pruned = prune_to(self._trace, signature)
        self.random = self._function.draws_numbers

    def _trace(self, *tensors: tf.Tensor) -> dict[Any, Any]:
        leaves, numbers, states, known = _split_at(tensors, self._counts)
        rows, total, first, split, times = numbers
        data = _packed(self._spec, leaves)
        own = [*leaves, rows, first]
        known, split = (None, split) if self._whole else (known, None)
        observer = Observed(known, split, own, times, self._at_tape)
        step = StepContext(0, PARTS, rows, total, first_row=first, observer=observer, rules=self._rules)
        step.take_gradients = lambda optimizer, pairs: _note_gradients(step, observer, pairs)
        strategy = self._model.distribute_strategy
        with (
            LookedAtReplica(strategy, first_local_replica(strategy), observer.sums),
            pretending_replicas(1 if self._whole else PARTS),
            whole_batch_values(self._model, several=True, with_results=self._own_logs),
            tensors_kept_by(self._model),
            statistics_of_all_rows(layers_of(self._model)),
            step_scope(step),
            _Noting() as writes,
        ):
            writes.state_mapping.update({id(v): value for v, value in zip(self._states, states)})
            step.writes = writes
            logs = self._step_fn(data)
            if self._own_logs:
                part_of_logs(logs or {}, step)
            draw_alike(tf.compat.v1.get_default_graph())
        metrics = variable_ids(metrics_of(self._model))
        written = [(v, value) for v, value in writes.items() if id(v) not in metrics]
        self.writes, self.exchanged = [v for v, _ in written], observer.exchanged
        self.reads = [v for key, v in writes.reads.items() if key not in metrics]
        self.entries, self.noted, self.fed_to = observer.entries, list(observer.notes), observer.fed_to
        self.without_rows, self.rules_of_parts = observer.without_rows, observer.rules_of_parts
        self.bent = observer.bent
        self.takes_gradients = not observer.nested and any(key[0] == "tape" for key in observer.notes)
        self.changes_gradients = self.takes_gradients and observer.changed
        return {
            "notes": observer.notes,
            "writes": [value for _, value in written],
            "exchanged": observer.exchanged if self._whole else [],
        }

    def __call__(
        self,
        batch: Any,
        first: int,
        last: int,
        total: int,
        states: Sequence[Any],
        times: float = 1.0,
        known: Sequence[Any] = (),
    ) -> dict[str, Any]:
        """What is noted for the rows `[first, last)` of a batch of `total` rows, as NumPy arrays.

        Args:
            batch: nest of tensors: these rows.
            first: int; where they begin.
            last: int; where they end.
            total: int; rows of the whole batch.
            states: values of the states.
            times: what the gradients are multiplied with that tapes give.
            known: what replicas exchange.
        """
        numbers = [tf.constant(n) for n in (last - first, total, first, max(1, (last - first) // 3))]
        factor = tf.constant(times, tf.float64)
        return self._function(*_leaves(batch), *numbers, factor, *map(tf.constant, states), *known)


class _Noting(CollectedWrites):
    """Notes what is read, too."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: dict[int, keras.Variable] = {}

    def get_current_value(self, variable: keras.Variable) -> Any:
        self.reads[id(variable)] = variable
        return super().get_current_value(variable)


def _leaves(structure: Any) -> list[Any]:
    """The tensors (or specs) of a batch, without Nones."""
    return [leaf for leaf in tf.nest.flatten(structure, expand_composites=True) if leaf is not None]


def _packed(spec: Any, leaves: Sequence[tf.Tensor]) -> Any:
    rest = iter(leaves)
    flat = tf.nest.flatten(spec, expand_composites=True)
    every = [None if leaf is None else next(rest) for leaf in flat]
    return tf.nest.pack_sequence_as(spec, every, expand_composites=True)


def _split_at(tensors: Sequence[Any], counts: Sequence[int]) -> list[Any]:
    parts, rest = [], list(tensors)
    for count in counts:
        parts.append(rest[:count])
        rest = rest[count:]
    return [*parts, rest]


def _note_gradients(step: StepContext, observer: Observed, pairs: Any) -> None:
    gradients = [g for g, _ in pairs if g is not None]
    if not gradients:
        return
    if not observer.reaches(values_of(gradients[0])):
        raise WriteInNestedGraph
    number = step.count("optimizer calls")
    observer.given(number, gradients)
    observer.notes["gradients", number] = tf.concat([_sketch(g) for g in gradients], 0)


def looked_at(model: TrainedModel, name: str) -> Callable[[Any], Any]:
    """The step to be traced: the user's own, or what the user's parts of the standard step leave in it."""
    if name == "predict_step" or model._overrides_step(name):
        return getattr(model, name)
    training = name == "train_step"

    def step(data: Any) -> Any:
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        y_pred = forward(model, x, training=training)
        loss_on_replica(model, x, y, y_pred, sample_weight, training)
        return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    return step
