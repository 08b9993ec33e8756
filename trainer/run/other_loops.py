"""Loops of steps other than that of `step_function`: eager, over open-ended or per-worker input, one step a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ...compat.graphs import effects
from ..inputs.source import Chunk
from . import worker_batches
from .compiled import GRAPH, Compiled, GlobalSteps
from .xla_loops import or_graph


def eager_loop(function: GlobalSteps, chunk: Chunk) -> Callable[[Any, int], tuple[int, dict[str, Any]]]:
    """The loop with `run_eagerly=True`."""
    next_batch = _batches_of_workers(function, chunk) if chunk.per_worker else _next_batch(chunk)

    def run(inputs: Any, steps: int) -> tuple[int, dict[str, Any]]:
        own_logs: dict[str, Any] = {}
        for i in range(steps):
            function.begin(tf.constant(i))
            batch = next_batch(inputs, tf.constant(i))
            if batch is None:
                return i, function.logs(own_logs) if i else {}
            own_logs = function.global_step(*batch)
            if _halts(function):
                return i + 1, function.logs(own_logs)
        return steps, function.logs(own_logs)

    return run


def _next_batch(chunk: Chunk) -> Callable[[Any, Any], Any]:
    """`fn(inputs, i)`: the arguments of `global_step`; None at the end of the data."""

    def next_batch(inputs: Any, i: tf.Tensor) -> Any:
        batch = chunk.reader(inputs, i)
        if not chunk.open_ended:
            return batch, chunk.batch_size
        return (batch.get_value(), chunk.batch_size) if batch.has_value() else None

    return next_batch


def _batches_of_workers(function: GlobalSteps, chunk: Chunk) -> Callable[[Any, Any], Any]:
    """The same where each worker reads its own input; see `worker_batches`."""
    last: list[Any] = []

    def next_batch(inputs: Any, i: tf.Tensor) -> Any:
        more = chunk.reader(inputs, i)
        batch, rows = worker_batches.own_batch(
            more, last[0] if last else worker_batches.empty_batch(more.element_spec)
        )
        last[:] = [batch]
        counts = worker_batches.rows_of_workers(function.model.distribute_strategy, rows)
        return (batch, None, counts) if int(tf.reduce_sum(counts)) else None

    return next_batch


def open_loop(
    function: GlobalSteps, step: Callable[..., Any], reader: Any, rows: int | None
) -> Callable[..., Any]:
    """The loop over batches whose data may end early; `reader` gives Optionals of them."""

    def run(inputs: Any, steps: tf.Tensor) -> tuple[tf.Tensor, dict[str, Any]]:
        first = reader(inputs, tf.constant(0))
        empty = tf.experimental.Optional.empty(first.element_spec)

        def body(i: tf.Tensor, batch: Any, logs: Any) -> Any:
            function.begin(i)
            with effects() as made:
                new = step(batch.get_value(), rows)
            with tf.control_dependencies(made):  # the step is complete before an error of the input
                function.begin(i + 1)
                more = tf.cond(function.goes_on(i + 1 < steps), lambda: reader(inputs, i + 1), lambda: empty)
            return i + 1, more, function.carried.after(logs, new)

        start = function.start()
        done, _, logs = tf.while_loop(
            lambda i, batch, logs: function.goes_on(tf.logical_and(i < steps, batch.has_value())),
            body,
            (tf.constant(0), first, start),
        )
        return done, function.logs(function.carried.end(logs))

    return run


def loop_over_workers(function: GlobalSteps, step: Callable[..., Any], reader: Any) -> Callable[..., Any]:
    """The loop in the graph for input that each worker reads itself; see `worker_batches`."""
    strategy = function.model.distribute_strategy

    def run(inputs: Any, steps: tf.Tensor) -> Any:
        first = reader(inputs, tf.constant(0))
        empty = tf.experimental.Optional.empty(first.element_spec)

        def body(i: tf.Tensor, batch: Any, counts: tf.Tensor, logs: Any) -> Any:
            function.begin(i)
            with effects() as made:
                new = step(batch, None, worker_rows=counts)
            with tf.control_dependencies(made):
                function.begin(i + 1)
                more = tf.cond(function.goes_on(i + 1 < steps), lambda: reader(inputs, i + 1), lambda: empty)
            batch, rows = worker_batches.own_batch(more, batch)
            return (
                i + 1,
                batch,
                worker_batches.rows_of_workers(strategy, rows),
                function.carried.after(logs, new),
            )

        batch, rows = worker_batches.own_batch(first, worker_batches.empty_batch(first.element_spec))
        counts = worker_batches.rows_of_workers(strategy, rows)
        done, _, _, logs = tf.while_loop(
            lambda i, batch, counts, logs: function.goes_on(
                tf.logical_and(i < steps, tf.reduce_sum(counts) > 0)
            ),
            body,
            (tf.constant(0), batch, counts, function.start()),
        )
        return done, function.logs(function.carried.end(logs))

    return run


def on_replicas(function: GlobalSteps, loop: Compiled, chunk: Chunk) -> Compiled:
    """`loop`, or a version with a separate call for each step, where one loop cannot run several.

    TensorFlow keeps the shape of a collective for a whole call. So where replicas gather samples or slices whose number
    differs between steps, each step needs a separate call. This is known once the loop has been traced.
    """
    function.shapes_vary = False
    signed = chunk.signature is not None and not chunk.open_ended
    loop.function.get_concrete_function(*(() if signed else loop.arguments(chunk)))
    if function.shapes_vary:
        return Compiled(_OneByOne(function, loop.function, drawn=chunk.open_ended), loop.arguments)
    return loop if function.way == GRAPH else or_graph(function, loop, chunk)


class _OneByOne:
    """Calls a loop for every step separately.

    Args:
        function: the steps.
        loop: `loop(inputs, steps, first)`, or `loop(inputs, steps)` where batches are drawn from an iterator.
        drawn: whether batches are drawn from an iterator.
    """

    def __init__(self, function: GlobalSteps, loop: Any, drawn: bool) -> None:
        self._function, self._loop, self._drawn = function, loop, drawn
        self.functions = [loop]

    def __call__(self, inputs: Any, steps: tf.Tensor, first: Any = 0) -> tuple[int, dict[str, Any]]:
        logs: dict[str, Any] = {}
        for i in range(int(steps)):
            self._function.begin(i)
            span = (1,) if self._drawn else (i + 1, i)
            ran, new = self._loop(inputs, *(tf.constant(number, tf.int32) for number in span))
            if not int(ran):
                return i, logs
            logs = new
            if _halts(self._function):
                return i + 1, logs
        return int(steps), logs


def _halts(function: GlobalSteps) -> bool:
    """Whether the completed step is the last, regardless of remaining ones."""
    return function.recorder is not None and function.recorder.halted()
