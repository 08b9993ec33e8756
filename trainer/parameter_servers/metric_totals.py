"""Metrics of asynchronous training: workers return what each step adds, the coordinator adds it up.

So a metric counts each step once, whoever computed it and however often it was tried, and no worker waits for another's
sums. A metric must be a sum over batches, as all of Keras' are: its state after a batch is its state before plus what
the batch adds.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.graphs import graph_function
from ..step.global_metrics import as_tensors, leaf_metrics


class RowLayout:
    """The layout of the row of numbers that a step returns.

        [done, applied, what the step adds to each variable of the metrics..., the step's own logs...]

    Args:
        model: built.
        logs: what its step returns; None: the results of its metrics.

    Attributes:
        variables: the metrics' Keras variables.
        width: int; float64 numbers in a row.
    """

    def __init__(self, model: TrainedModel, logs: StepLogs | None = None) -> None:
        self.logs = logs
        self.own_logs = own_logs = {} if logs is None else logs.own
        self.variables = list({id(v): v for v in model.metrics_variables}.values())
        self._shapes = [tuple(v.shape) for v in self.variables]
        self._log_shapes = [tuple(s.shape) for s in keras.tree.flatten(own_logs)]
        sizes = [int(np.prod(shape)) for shape in self._shapes + self._log_shapes]
        self._bounds = np.cumsum([2, *sizes])
        self.width = int(self._bounds[-1])

    def pack(self, applied: Any, added: list[tf.Tensor], logs: Any) -> tf.Tensor:
        """The row of one step: float64 `[width]`. Context: graph."""
        flags = tf.stack([tf.constant(1.0, tf.float64), tf.cast(applied, tf.float64)])
        leaves = [*added, *keras.tree.flatten(logs)]
        return tf.concat([flags, *(tf.reshape(tf.cast(leaf, tf.float64), [-1]) for leaf in leaves)], 0)

    def added(self, rows: np.ndarray, variable: Any) -> np.ndarray:
        """What each of the steps adds to one of `variables`: `[steps, *shape]`."""
        index = next(i for i, other in enumerate(self.variables) if other is variable)
        return rows[:, self._bounds[index] : self._bounds[index + 1]].reshape(-1, *self._shapes[index])

    def average_logs(self, rows: np.ndarray, weights: np.ndarray) -> None:
        """Puts the mean of the own logs of the parts of a step, `rows`, into each of them."""
        logs = rows[:, self._bounds[len(self.variables)] :]
        logs[...] = np.average(logs, axis=0, weights=weights)

    def logs_of(self, row: np.ndarray) -> Any:
        """The own logs of a step."""
        first = len(self.variables)
        leaves = [
            row[self._bounds[first + i] : self._bounds[first + i + 1]].reshape(shape)
            for i, shape in enumerate(self._log_shapes)
        ]
        return keras.tree.pack_sequence_as(self.own_logs, leaves)


@dataclasses.dataclass(frozen=True)
class StepLogs:
    """What a step of the user's own returns.

    Attributes:
        names: the names of the logs, in their order.
        own: name -> nest of `tf.TensorSpec`, of the logs that no metric carries.
        results: name -> metric, of the logs that are `metric.result()` under another name than the metric's.
    """

    names: list[str]
    own: dict[str, Any]
    results: dict[str, Any]


@contextlib.contextmanager
def noted_results(metrics: list[Any]) -> Iterator[list[tuple[Any, Any]]]:
    """Gives a list to which (what `metric.result()` returned, metric) is added at each call."""
    noted: list[tuple[Any, Any]] = []

    def note(metric: Any, result: Any) -> Any:
        def noting() -> Any:
            value = result()
            noted.append((value, metric))
            return value

        return noting

    leaves = leaf_metrics(metrics)
    for metric in leaves:
        object.__setattr__(metric, "result", note(metric, metric.result))
    try:
        yield noted
    finally:
        for metric in leaves:
            object.__delattr__(metric, "result")


class Totals:
    """The metrics' state, on the coordinator.

    Args:
        model: built.
        layout: of the rows.
        read: a function of the metrics' state, kept from phase to phase (`result_function`).
    """

    def __init__(self, model: TrainedModel, layout: RowLayout, read: Any) -> None:
        self._model, self._layout, self._read = model, layout, read
        self._state = [np.array(v.numpy()) for v in layout.variables]
        self._last: np.ndarray | None = None
        self.applied = 0

    def add(self, rows: np.ndarray) -> None:
        """Adds the steps of `rows`, float64 `[steps, width]`, one by one: the sums that one device would have."""
        for index, (variable, state) in enumerate(zip(self._layout.variables, self._state)):
            each = self._layout.added(rows, variable).astype(state.dtype)
            self._state[index] = np.add.accumulate(np.concatenate([state[None], each]), axis=0)[-1]
        self.applied += int(rows[:, 1].sum())
        self._last = rows[-1]

    def logs(self) -> dict[str, Any]:
        """The results of the metrics, and the own logs of the last step that arrived."""
        with tf.device("CPU:0"):
            results = self._read([tf.constant(value) for value in self._state])
        if self._layout.logs is None or self._last is None:
            return results
        every = {**self._layout.logs_of(self._last), **results}
        return {name: every[name] for name in self._layout.logs.names}

    def commit(self) -> None:
        """Writes the state into the metrics' variables."""
        for variable, value in zip(self._layout.variables, self._state):
            variable.assign(value)


def result_function(model: TrainedModel, layout: RowLayout) -> Any:
    """A function from the metrics' state to their results; it runs on the coordinator."""

    def read(values: list[tf.Tensor]) -> dict[str, Any]:
        with keras.StatelessScope(state_mapping=list(zip(layout.variables, values))):
            named = {} if layout.logs is None else layout.logs.results
            results = {name: metric.result() for name, metric in named.items()}
            return as_tensors({**results, **model.get_metrics_result()})

    return graph_function(read)
