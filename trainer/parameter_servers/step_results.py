"""The result of one step on a worker: a vector of numbers, which the coordinator sums."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...compat.keras_private.optimizers import call_count
from ...compat.keras_private.variables import raw_value
from ...compat.shared_change import share_attributes
from ...compat.tensorflow_graphs.graphs import enter_this_graph, graph_function
from ...distribute.step_context import StepContext, step_scope
from ...state.trained_model import TrainedModel
from ..fit_checks import check_logs
from ..step.collected_writes import CollectedWrites
from ..step.global_metrics import as_tensors, leaf_metrics


@dataclasses.dataclass(frozen=True)
class CustomLogs:
    """The logs of a custom step."""

    names: list[str]
    """The names of the logs, in their order."""
    own: dict[str, Any]
    """Name -> nest of `tf.TensorSpec`, of the logs that are not metrics."""
    results: dict[str, Any]
    """Name -> metric, of the logs that are `metric.result()` under a different name."""


class ResultLayout:
    """The layout of the vector of float64 numbers that a step returns.

        [done, applied, the step's additions to each variable of the metrics..., the custom logs...]

    Without `logs`, the logs of a step are the results of its metrics. `variables` are the metrics', and `width` is the
    number of numbers in a vector.
    """

    def __init__(self, model: TrainedModel, logs: CustomLogs | None = None) -> None:
        self.logs, self.own_logs = logs, {} if logs is None else logs.own
        self.variables = list({id(v): v for v in model.metrics_variables}.values())
        self._shapes = [tuple(v.shape) for v in [*self.variables, *keras.tree.flatten(self.own_logs)]]
        self._bounds = np.cumsum([2, *(int(np.prod(shape)) for shape in self._shapes)])
        self.width = int(self._bounds[-1])

    def pack(self, applied: Any, added: list[tf.Tensor], logs: Any) -> tf.Tensor:
        """Return the result of one step: float64 `(width,)`. Context: graph."""
        flags = tf.stack([tf.constant(1.0, tf.float64), tf.cast(applied, tf.float64)])
        leaves = [*added, *keras.tree.flatten(logs)]
        return tf.concat([flags, *(tf.reshape(tf.cast(leaf, tf.float64), [-1]) for leaf in leaves)], 0)

    def of_step(self, writes: CollectedWrites, logs: Any, applied: tf.Tensor) -> tf.Tensor:
        """Return the result of a step, whose metrics begin with zeros."""
        added = []
        for variable in self.variables:
            nothing = tf.zeros(variable.shape, variable.dtype)
            added.append(tf.where(applied, writes.state_mapping.get(id(variable), nothing), nothing))
        return self.pack(applied, added, {name: logs[name] for name in self.own_logs})

    def part(self, results: np.ndarray, number: int) -> np.ndarray:
        """Return each step's addition to variable `number` of `variables`, or the log after them: `(steps, *shape)`."""
        first, last = self._bounds[number : number + 2]
        return results[:, first:last].reshape(-1, *self._shapes[number])

    def logs_of(self, result: np.ndarray) -> Any:
        """Return the custom logs of a step."""
        numbers = range(len(self.variables), len(self._shapes))
        leaves = [self.part(result[None], number)[0] for number in numbers]
        return keras.tree.pack_sequence_as(self.own_logs, leaves)


def worker_step(
    model: TrainedModel, step_fn: Any, batch: Any, step: StepContext, layout: ResultLayout, alone: bool
) -> tuple[tf.Tensor, Any]:
    """Make the writes of one step; return its result, float64 `[layout.width]`, and its unchanged logs.

    It is the step of one replica (`train_step.py`), except for its writes: additions to metrics are returned, and
    changes of other state are added to the servers' current values, since other workers have written in between. So a
    metric counts each step once, for any number of attempts. Its state after a batch must be its state before plus the
    batch's contribution. A worker that is `alone` makes its writes directly. Context: a graph that a worker runs.
    """
    with tf.distribute.ReplicaContext(model.distribute_strategy, 0):
        with step_scope(step), ReadOnce(alone, layout.variables, model.non_trainable_variables) as writes:
            step.writes = writes
            logs = check_logs(step_fn(batch), getattr(step_fn, "__name__", "train_step"), text=False)
        result = layout.of_step(writes, logs, tf.constant(True) if step.applied is None else step.applied)
        writes.forget(layout.variables)
        writes.make(step)
    return result, logs


class ReadOnce(CollectedWrites):
    """Collects the writes of a step on a worker, and keeps its reads: other workers write in between.

    Changes of state are added to the servers' current values, unless the worker is `alone`. A metric begins with zeros, and
    the step's sums are added in any case.

    Args:
        metrics: the variables of metrics; None: all whose copies are summed.
        state: the other variables whose reads are kept; None: all that gradients do not train.
    """

    def __init__(
        self,
        alone: bool,
        metrics: Iterable[keras.Variable] | None = None,
        state: Iterable[keras.Variable] | None = None,
    ) -> None:
        super().__init__()
        self._alone, self._finds_metrics = alone, metrics is None
        self._state = None if state is None else set(map(id, state))
        self._in_graph_of_step = enter_this_graph()
        # The values from which the step's changes count, by the ids of the variables.
        self._before = {id(v): tf.zeros(v.shape, v.dtype) for v in metrics or ()}
        self._sums = set(self._before)

    def own_value(self, variable: keras.Variable) -> Any:
        """Return the step's only read of a variable with state."""
        own, key = raw_value(variable), id(variable)
        kept = not variable.trainable if self._state is None else key in self._state
        if key not in self._before:
            if own is None or not kept:
                return own
            with self._in_graph_of_step():  # the first read may be in a branch or a loop
                if self._finds_metrics and variable.synchronization == "on_read":
                    self._sums.add(key)
                    self._before[key] = tf.zeros(variable.shape, variable.dtype)
                else:
                    self._before[key] = tf.identity(tf.convert_to_tensor(own))
        return self._before[key]

    def new_value(self, variable: keras.Variable, copy: tf.Variable, value: tf.Tensor) -> tf.Tensor:
        """Return the current value of the server plus the step's change."""
        start = self._before.get(id(variable))
        adds = value.dtype.is_floating or value.dtype.is_integer
        if start is None or not adds or (self._alone and id(variable) not in self._sums):
            return value
        return tf.convert_to_tensor(copy) + (value - start)


@contextlib.contextmanager
def note_results(metrics: list[Any]) -> Iterator[list[tuple[Any, Any]]]:
    """Yield a list that gets a pair (result of `metric.result()`, metric) at each call."""
    noted: list[tuple[Any, Any]] = []

    def noting(metric: Any, result: Any) -> Any:
        def call() -> Any:
            noted.append((result(), metric))
            return noted[-1][0]

        return call

    makers = [(metric, functools.partial(noting, metric)) for metric in leaf_metrics(metrics)]
    with share_attributes("result", makers):
        yield noted


class Totals:
    """The metrics' state, on the coordinator; `read` is their `result_function`, kept from phase to phase."""

    def __init__(self, layout: ResultLayout, read: Any) -> None:
        self._layout, self._read = layout, read
        self._state = [np.array(v.numpy()) for v in layout.variables]
        self._last: np.ndarray | None = None
        self.applied = 0

    def add(self, results: np.ndarray) -> None:
        """Add the steps of `results`, float64 `(steps, width)`, one by one: the single-device sums."""
        for index, state in enumerate(self._state):
            each = self._layout.part(results, index).astype(state.dtype)
            self._state[index] = np.add.accumulate(np.concatenate([state[None], each]), axis=0)[-1]
        self.applied += int(results[:, 1].sum())
        self._last = results[-1]

    def logs(self) -> dict[str, Any]:
        """Return the results of the metrics, and the custom logs of the last step that arrived."""
        with tf.device("CPU:0"):
            results = self._read([tf.constant(value) for value in self._state])
        if self._layout.logs is None or self._last is None:
            return results
        every = {**results, **self._layout.logs_of(self._last)}
        return {name: every[name] for name in self._layout.logs.names}

    def commit(self) -> None:
        """Write the state into the metrics' variables."""
        for variable, value in zip(self._layout.variables, self._state):
            variable.assign(value)


def result_function(model: TrainedModel, layout: ResultLayout) -> Any:
    """Return a function from the metrics' state to their results; it runs on the coordinator."""

    def read(values: list[tf.Tensor]) -> dict[str, Any]:
        with keras.StatelessScope(state_mapping=list(zip(layout.variables, values))):
            named = {} if layout.logs is None else layout.logs.results
            results = {name: metric.result() for name, metric in named.items()}
            return as_tensors({**model.get_metrics_result(), **results})

    return graph_function(read)


class UpdateCount:
    """The optimizer's count of updates, corrected after a worker was lost while it was counting."""

    def __init__(self, model: TrainedModel) -> None:
        optimizer: Any = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        self._variable: Any = None
        if optimizer is not None and not model._overrides_step("train_step"):
            self._variable = call_count(optimizer)
        self._start = int(self._variable.numpy()) if self._variable is not None else 0

    def correct(self, totals: Any, losses: int) -> None:
        """Set the count to the number of applied steps, if a worker was lost. Context: host, no step in progress."""
        if losses and self._variable is not None:
            self._variable.assign(self._start + totals.applied)
