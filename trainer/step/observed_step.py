"""A step that is only looked at: traced as one replica would compute it, pruned to its numbers, and never applied.

The graph holds what the numbers depend on and nothing else: no write, no message to the host, no draw from an input. Two
traces are made of it. The first computes on all rows, as one device does. The second is one of two replicas, which is
told what the first one learned from "all replicas" (totals, gathered rows).
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.edges import next_number
from ...compat.layers import layers_of, statistics_of_all_rows
from ...compat.pruning import Pruned, prune_to
from ...compat.strategies import LookedAtReplica, pretending_replicas
from ...compat.training import unpack_x_y_sample_weight
from ...distribute.join_rules import JoinRules, declared
from ...distribute.step_context import StepContext, step_scope, this_step
from ...distribute.workers.agreement import first_local_replica
from ...optimizers.stages.slices import values_of
from .collected_writes import CollectedWrites, WriteInNestedGraph
from .global_metrics import metrics_of, variable_ids
from .global_regularizers import whole_batch_values
from .kept_tensors import tensors_kept_by
from .number_parts import used_by
from .observed import PARTS, Observed, sketch
from .observed_draws import draw_alike
from .step_loss import loss_on_replica
from .train_step import forward, part_of_logs


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
        gathered_layers: see `JoinRules`.

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
        statistics, direct_statistics, row_layers, may_mix: see `Observed`.
        bent: see `Observed`; without `bent_writes`.
        bent_writes: the same of what is written.
        read_back: what is written and read again in the step, and is not the same on all replicas.
        built_on: for what is written, the writes before it of which it is computed.
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
        gathered_layers: Collection[int] = (),
    ) -> None:
        self._model, self._step_fn, self._spec, self._at_tape = model, step_fn, spec, at_tape
        self._rules = dataclasses.replace(rules or JoinRules(), gathered_layers=gathered_layers)
        self._states, self._own_logs, self._whole = states, own_logs, known is None
        self.writes: list[keras.Variable] = []
        self.reads: list[keras.Variable] = []
        self.exchanged: list[tf.Tensor] = []
        self.entries, self.noted, self.without_rows, self.fed_to, self.rules_of_parts = False, [], [], {}, {}
        self.bent: set[tuple[Any, ...]] = set()
        self.statistics: list[tuple[str, Any]] = []
        self.direct_statistics: list[tuple[str, Any]] = []
        self.row_layers: list[Any] = []
        self.may_mix: list[Any] = []
        self.bent_writes: set[tuple[Any, ...]] = set()
        self.read_back: set[tuple[Any, ...]] = set()
        self.built_on: dict[tuple[Any, ...], set[tuple[Any, ...]]] = {}
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
        observer = Observed(known, split, own, times, self._at_tape, layers_of(self._model))
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
            _Noting(observer, self._states) as writes,
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
        self.statistics, self.direct_statistics = observer.statistics, observer.direct_statistics
        self.row_layers, self.may_mix = observer.row_layers, observer.may_mix
        self.bent_writes = {key for key in observer.bent if key[0] == "write"}
        self.bent = observer.bent - self.bent_writes
        self.read_back, self.built_on = writes.read_back & observer.differing, writes.built_on
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
    """Notes what is read, too, and of which numbers it is computed what is assigned to a state, once and in no branch."""

    def __init__(self, observer: Observed, states: Sequence[keras.Variable]) -> None:
        super().__init__()
        self.reads: dict[int, keras.Variable] = {}
        self.read_back: set[tuple[Any, ...]] = set()
        self.built_on: dict[tuple[Any, ...], set[tuple[Any, ...]]] = {}
        self._noted: dict[tuple[Any, ...], tf.Tensor] = {}
        self._observer = observer
        self._states = {id(v) for v in states if declared(v) is None}
        self._assigned = collections.Counter[int]()

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        variable, value = update
        what, step = ("write", id(variable)), this_step()
        self._assigned[id(variable)] += 1
        once = id(variable) in self._states and self._assigned[id(variable)] == 1
        if once and what not in step.rules.parts:
            self._observer.computed(what, value, step)
        super().add_update(update)
        noted = self.state_mapping[id(variable)]
        self._observer.written(noted)
        if once and self._observer.reaches(noted):
            self._observer.note(what, noted)
            used = used_by(noted, this_step())
            self.built_on[what] = {before for before, value in self._noted.items() if id(value) in used}
            self._noted[what] = noted
        elif not once:
            self._observer.forget(what)

    def get_current_value(self, variable: keras.Variable) -> Any:
        self.reads[id(variable)] = variable
        if id(variable) in self.variables:
            self.read_back.add(("write", id(variable)))
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
    observer.notes["gradients", number] = tf.concat([sketch(g) for g in gradients], 0)


def looked_at(model: TrainedModel, name: str) -> Callable[[Any], Any]:
    """The step to be traced: the user's own, or what the user's parts of the standard step leave in it."""
    training = name == "train_step"

    def prediction(data: Any) -> Any:
        with _called(model, model._overrides_step(name)) as told:
            outputs = model.predict_step(data)
            told.append(outputs)
        _tell_outputs(outputs)
        return outputs

    def step(data: Any) -> Any:
        x, y, sample_weight = unpack_x_y_sample_weight(data)
        y_pred = forward(model, x, training=training)
        _tell_outputs(y_pred)
        loss_on_replica(model, x, y, y_pred, sample_weight, training)
        return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    if name == "predict_step":
        return prediction
    return getattr(model, name) if model._overrides_step(name) else step


@contextlib.contextmanager
def _called(model: TrainedModel, own_step: bool) -> Iterator[list[Any]]:
    """Tells the observer of a step of the user's own as of a call of the model; the outputs are added to what it gives."""
    graph, outputs = tf.compat.v1.get_default_graph(), list[Any]()
    before = next_number(graph)
    yield outputs
    observer = this_step().observer
    if own_step and observer is not None:
        observer.called(model, outputs, graph, before, next_number(graph))


def _tell_outputs(outputs: Any) -> None:
    observer = this_step().observer
    if observer is not None:
        observer.outputs(outputs)
