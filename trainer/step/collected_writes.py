"""The writes of a step: collected while it is computed, made together at its end, or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.equal_operations import made_once
from ...compat.graphs import is_inside, made_in_this_graph
from ...compat.layers import forget_losses
from ...compat.random_state import is_random_state
from ...compat.variables import is_read_together, raw_value, stored_dtype
from ...distribute.replicas import (
    all_reduce_sum_packed,
    local_copy,
    num_replicas,
    once_per_copy,
    shares_variables,
)
from ...distribute.step_context import ON_FIRST_REPLICA, StepContext
from ...distribute.write_rules import EQUAL, FIRST, MEAN, SUM, declared

SETTLED = "settled"
"""In the notes of a step: ids of the variables whose copy on this replica shall hold what the replica wrote."""


class WriteInNestedGraph(BaseException):
    """A branch, loop or function writes, or replicas exchange something in a function that is compiled apart.

    See `nested_graphs.py`. No `Exception`: code of the user's own must not catch it.
    """


class CollectedWrites(keras.StatelessScope):
    """A scope in which an assignment to a Keras variable is noted instead of made; reads see the noted value.

    Attributes:
        variables: those that were assigned, by their ids.
        adders: the layers that have added losses in it.
    """

    def __init__(self) -> None:
        super().__init__(collect_losses=True)
        self.variables: dict[int, keras.Variable] = {}
        self.adders: list[keras.layers.Layer] = []
        self._graph = tf.compat.v1.get_default_graph()
        self._reads_here: Any = None

    @contextlib.contextmanager
    def in_this_graph(self) -> Iterator[None]:
        """Writes are noted inside of the current graph, in which the scope was not entered."""
        before, self._graph = self._graph, tf.compat.v1.get_default_graph()
        try:
            yield
        finally:
            self._graph = before

    @property
    def _is_in_nested_graph(self) -> bool:
        return not tf.executing_eagerly() and is_inside(tf.compat.v1.get_default_graph(), self._graph)

    @property
    def is_in_function(self) -> bool:
        """Whether this is the graph of a function that reads variables outside of itself."""
        return self._reads_here is not None and self._is_in_nested_graph

    @contextlib.contextmanager
    def reading_in_this_graph(self) -> Iterator[None]:
        """Variables are read in the current graph, also for functions inside of it.

        What XLA compiles for one device reads no variable of another device, and no weight that is held in shards.
        """
        before, self._reads_here = self._reads_here, made_in_this_graph()
        try:
            yield
        finally:
            self._reads_here = before

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        """Notes one assignment (Keras calls this)."""
        variable, value = update
        if self._is_in_nested_graph:
            raise WriteInNestedGraph
        self.variables[id(variable)] = variable
        super().add_update((variable, tf.cast(value, stored_dtype(variable))))

    def get_current_value(self, variable: keras.Variable) -> Any:
        """The noted value, or the variable's own (Keras calls this).

        A tape knows a weight by its variable, whatever the step has assigned to it: spectral normalization assigns the
        weight that it then uses, and sharpness-aware minimization takes a gradient at weights that it has moved. No
        gradient flows through what is read into what was assigned, such as a running mean into the rows.
        """
        noted = super().get_current_value(variable)
        if noted is None and self._reads_here is not None and raw_value(variable) is not None:
            with self._reads_here():
                return tf.convert_to_tensor(raw_value(variable))
        if noted is None:
            return raw_value(variable)
        if self.stands_for_variable(variable):
            return _of_variable(noted, tf.convert_to_tensor(raw_value(variable)))
        written = id(variable) in self.variables and noted.dtype.is_floating
        return tf.stop_gradient(noted) if written else noted

    def stands_for_variable(self, variable: keras.Variable) -> bool:
        """Whether the gradient of what was assigned is the variable's."""
        floating = tf.as_dtype(variable.dtype).is_floating
        known = id(variable) in self.variables or (
            self._reads_here is not None and id(variable) not in self.state_mapping
        )
        return variable.trainable and floating and known and raw_value(variable) is not None

    def items(self) -> list[tuple[keras.Variable, tf.Tensor]]:
        """(variable, last value) pairs, in the order of the first assignment."""
        return [(variable, self.state_mapping[key]) for key, variable in self.variables.items()]

    def __exit__(self, *error: Any) -> None:
        """Ends the scope. Layers drop what they have added in it: they know it by ids, which other tensors may get."""
        super().__exit__(*error)
        for layer in self.adders:
            forget_losses(layer, self.losses)

    def forget(self, variables: Iterable[Any]) -> None:
        """Drops what was noted for `variables`: they have been written since."""
        for variable in variables:
            self.variables.pop(id(variable), None)
            self.state_mapping.pop(id(variable), None)


@tf.custom_gradient
def _of_variable(value: tf.Tensor, before: tf.Tensor) -> Any:
    """`value`, whose gradient is that of the variable which was read as `before`; none flows further back."""
    return tf.identity(value), lambda gradient: (None, gradient)


def make_writes(
    writes: Sequence[tuple[keras.Variable, tf.Tensor]],
    step: StepContext,
    metrics: set[int],
) -> None:
    """Writes each variable's new value, on every replica, if the step was not skipped.

    Kinds of variables are told apart:

    - metrics: this replica's copy. They are summed when they are read. What the step notes as `SETTLED` is written as it is,
      anything else only if the replica has rows.
    - everything else: one value for all replicas, by a rule (see `write_rules.py`): the one that the `aggregation` of the
      variable declares; else floating-point values become the mean weighted with each replica's share of the rows
      (BatchNormalization's averages), and integers are EQUAL. The state of random generators is equal already, because a
      replica without rows counts too.

    Args:
        writes: (variable, value) pairs of this replica.
        step: the step of this replica; `verdicts` say whether it was skipped.
        metrics: ids of the variables of metrics.

    Context: replica.
    """
    if not writes:
        return
    applied = step.applied
    old = {id(variable): local_copy(variable) for variable, _ in writes}
    new: list[tf.Tensor] = []
    rules: dict[int, str] = {}
    of_metrics: set[int] = set()
    for index, (variable, value) in enumerate(writes):
        if id(variable) in metrics or is_read_together(raw_value(variable)):
            settled = step.certainly_alive or id(variable) in step.notes.get(SETTLED, ())
            if not settled and step.num_replicas > 1:
                value = tf.where(step.alive, value, old[id(variable)])
            of_metrics.add(index)
            if shares_variables():
                rules[index] = SUM
        else:
            rule = _rule_of(variable, step)
            if rule is not None:
                rules[index] = rule
        new.append(value)
    if num_replicas() > 1:
        before = {index: old[id(writes[index][0])] for index in rules}
        for index, value in _joined(rules, before, new, step, of_metrics).items():
            new[index] = value

    def write(values: list[tf.Tensor], applied: tf.Tensor | None) -> None:
        for (variable, _), value in zip(writes, values):
            copy = old[id(variable)]
            copy.assign(value if applied is None else tf.where(applied, value, copy))

    once_per_copy(write)(new, applied)


def _rule_of(variable: keras.Variable, step: StepContext) -> str | None:
    """How the values of the replicas become one; None: they are equal already."""
    if step.notes.get(ON_FIRST_REPLICA):
        return FIRST
    said = declared(variable)
    if said is not None:
        return said
    if tf.as_dtype(variable.dtype).is_floating:
        return MEAN
    return None if is_random_state(variable) else EQUAL


@made_once()
def _joined(
    rules: dict[int, str],
    old: dict[int, Any],
    new: Sequence[tf.Tensor],
    step: StepContext,
    of_metrics: set[int],
) -> dict[int, tf.Tensor]:
    """The values that the replicas agree on, equal to the bit, by their place in `new`. Context: replica.

    What a replica without rows adds counts nothing, but for those in `of_metrics`, where it holds what it shall add.
    """
    joined: dict[Any, tf.Tensor] = {}
    parts: dict[Any, tf.Tensor] = {}
    values = {index: _carried(new[index]) for index in rules}

    def before(index: int) -> tf.Tensor:
        return _carried(tf.identity(old[index]))

    for index, rule in rules.items():
        value, dtype = values[index], values[index].dtype
        if rule == FIRST:
            parts[index] = _of_first(value, step)
        elif dtype.is_floating and rule in (MEAN, EQUAL):
            parts[index] = tf.math.multiply_no_nan(value, step.share(dtype))
        elif rule == MEAN:  # of the changes, which have few digits
            change = tf.cast(value - before(index), tf.float64)
            parts[index] = tf.math.multiply_no_nan(change, step.share(tf.float64))
        else:
            added = value - before(index)
            counts = True if index in of_metrics else step.alive
            parts[index] = tf.where(counts, added, tf.zeros_like(added))
        if rule == EQUAL:
            parts["first", index] = _of_first(value, step)
    for key, total in zip(parts, all_reduce_sum_packed(list(parts.values()))):
        joined[key] = total
    for index, rule in rules.items():
        dtype = values[index].dtype
        if rule == SUM or (rule == EQUAL and not dtype.is_floating):
            joined[index] = before(index) + joined[index]
        elif rule == MEAN and not dtype.is_floating:
            joined[index] = before(index) + tf.cast(tf.round(joined[index]), dtype)
    firsts = {index: joined.pop(("first", index)) for index, rule in rules.items() if rule == EQUAL}
    differ = [tf.logical_and(step.alive, tf.reduce_any(values[i] != first)) for i, first in firsts.items()]
    others = all_reduce_sum_packed([tf.cast(each, tf.int32) for each in differ])
    for (index, first), differing in zip(firsts.items(), others):
        joined[index] = tf.where(tf.equal(differing, 0), first, joined[index])
    return {index: _as_written(value, new[index].dtype) for index, value in joined.items()}


def _carried(value: tf.Tensor) -> tf.Tensor:
    """The value in a dtype that is added up over replicas: integers have 32 or 64 bits."""
    if value.dtype in (tf.int32, tf.int64) or not (value.dtype.is_integer or value.dtype == tf.bool):
        return value
    return tf.cast(value, tf.int32 if value.dtype.size < 4 else tf.int64)


def _as_written(value: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """A carried value in the variable's dtype."""
    return value > 0 if dtype == tf.bool else tf.cast(value, dtype)


def _of_first(value: tf.Tensor, step: StepContext) -> tf.Tensor:
    return tf.where(step.holds_first_row, value, tf.zeros_like(value))
