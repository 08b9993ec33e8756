"""One step on a worker, with the variables on parameter servers. Read it from top to bottom.

    rows of the batch -> forward -> loss -> gradients -> (lock) optimizer (unlock) -> averages -> row of numbers

It is the step of `step.py` for one replica. What differs is where its writes go: what metrics count is returned, and
other state is added to what the servers hold by then, since other workers have written in between.

Context: a graph that a worker runs.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import keras
import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.variables import raw_value
from ...distribute.parameter_servers.updates import beside
from ...distribute.replicas import local_copy, once_per_copy
from ...distribute.step_context import StepContext, step_scope
from ..checks import checked_logs
from ..step.collected_writes import CollectedWrites
from .metric_totals import RowLayout


def worker_step(
    model: TrainedModel, step_fn: Any, batch: Any, step: StepContext, layout: RowLayout, alone: bool
) -> tuple[tf.Tensor, Any]:
    """The row of one step, float64 `[layout.width]`, and its logs as it returned them; its writes are made.

    Args:
        model: the model.
        step_fn: `model.train_step` or `model.test_step`.
        batch: what the step gets.
        step: one replica with all rows.
        layout: of the row.
        alone: whether there is one worker only: its writes are then made as they are.
    """
    with tf.distribute.ReplicaContext(model.distribute_strategy, 0):
        with step_scope(step), CollectedWrites() as writes:
            step.writes = writes
            before = snapshot(model, writes, layout)
            logs = checked_logs(step_fn(batch), getattr(step_fn, "__name__", "train_step"))
        applied = tf.constant(True) if step.applied is None else step.applied
        row, state = step_row(layout, writes, logs, applied)
        write_state(state, before, applied, alone)
    return row, logs


def step_row(
    layout: RowLayout, writes: CollectedWrites, logs: Any, applied: tf.Tensor
) -> tuple[tf.Tensor, list[Any]]:
    """The row of a step, and what it wrote beside its metrics as (variable, value) pairs."""
    noted = {id(variable): value for variable, value in writes.items()}
    added = []
    for variable in layout.variables:
        start = tf.zeros(variable.shape, variable.dtype)
        new = noted.pop(id(variable), start)
        added.append(tf.where(applied, new - start, tf.zeros_like(start)))
    own = {name: logs[name] for name in layout.own_logs} if layout.own_logs else {}
    state = [(variable, value) for variable, value in writes.items() if id(variable) in noted]
    return layout.pack(applied, added, own), state


def snapshot(model: TrainedModel, writes: CollectedWrites, layout: RowLayout) -> dict[int, tf.Tensor]:
    """The state that the step reads: metrics at zero, and one value of everything that a layer may change."""
    for variable in layout.variables:
        writes.state_mapping[id(variable)] = tf.zeros(variable.shape, variable.dtype)
    before = {}
    for variable in model.non_trainable_variables:
        value = tf.identity(tf.convert_to_tensor(raw_value(variable)))
        before[id(variable)] = writes.state_mapping[id(variable)] = value
    return before


class ReadOnce(CollectedWrites):
    """Collects the writes of a step of the user's own loop, and keeps what it read: other workers write in between.

    Attributes:
        before: what the step read of each variable that gradients do not train, by its id; zeros for a metric.
        sums: the ids of those that hold sums: the variables of metrics.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[int, tf.Tensor] = {}
        self.sums: set[int] = set()

    def get_current_value(self, variable: keras.Variable) -> Any:
        """What was noted, or read before; a metric begins with zeros (Keras calls this)."""
        value = super().get_current_value(variable)
        if variable.trainable or id(variable) in self.variables or raw_value(variable) is None:
            return value
        if id(variable) not in self.before:
            if variable.synchronization == "on_read":
                self.sums.add(id(variable))
                self.before[id(variable)] = tf.zeros(variable.shape, variable.dtype)
            else:
                self.before[id(variable)] = tf.identity(tf.convert_to_tensor(raw_value(variable)))
        return self.before[id(variable)]


def write_state(
    writes: list[Any],
    before: dict[int, tf.Tensor],
    applied: tf.Tensor,
    alone: bool,
    sums: Container[int] = (),
) -> None:
    """Makes the writes of layers: with other workers, adds the difference to what the variable holds by now.

    What is in `sums` is added in any case.
    """
    if not writes:
        return

    def write(values: list[tf.Tensor], applied: tf.Tensor) -> None:
        for (variable, _), value in zip(writes, values):
            copy = local_copy(variable)
            with beside(copy):
                current = tf.convert_to_tensor(copy)
                start = before.get(id(variable))
                adds = value.dtype.is_floating or value.dtype.is_integer
                if adds and start is not None and (not alone or id(variable) in sums):
                    value = current + (value - start)
                copy.assign(tf.where(applied, value, current))

    once_per_copy(write)([value for _, value in writes], applied)
