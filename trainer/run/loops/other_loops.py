"""Loops of steps other than that of `step_function`: eager, or in a graph over batches whose data may end early."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ....compat.tensorflow_graphs.graphs import effects
from ...inputs.sources.source import Chunk
from .drawn_batches import batches_of
from .step_function import StepFunction


def eager_loop(function: StepFunction, chunk: Chunk) -> Callable[[Any, int], tuple[int, dict[str, Any]]]:
    """The loop with `run_eagerly=True`."""
    batches = batches_of(chunk, function.model.distribute_strategy)

    def run(inputs: Any, steps: int) -> tuple[int, dict[str, Any]]:
        own_logs: Any = {}
        drawn = None
        for i in range(steps):
            function.begin(tf.constant(i))
            drawn = batches.take(chunk.reader(inputs, tf.constant(i)), drawn)
            if not batches.exists(drawn):
                return i, function.logs(own_logs) if i else {}
            own_logs = function.global_step(*batches.arguments(drawn))
            if function.halted():
                return i + 1, function.logs(own_logs)
        return steps, function.logs(own_logs)

    return run


def drawn_loop(function: StepFunction, step: Callable[..., Any], chunk: Chunk) -> Callable[..., Any]:
    """The loop in the graph for an open-ended chunk: its reader gives Optionals of batches."""
    batches, reader = batches_of(chunk, function.model.distribute_strategy), chunk.reader

    def run(inputs: Any, steps: tf.Tensor) -> tuple[tf.Tensor, dict[str, Any]]:
        first = reader(inputs, tf.constant(0))
        empty = tf.experimental.Optional.empty(first.element_spec)

        def body(i: tf.Tensor, drawn: Any, logs: Any) -> Any:
            function.begin(i)
            with effects() as made:
                new = step(*batches.arguments(drawn))
            with tf.control_dependencies(made):  # the step is complete before an error of the input
                function.begin(i + 1)
                more = tf.cond(function.goes_on(i + 1 < steps), lambda: reader(inputs, i + 1), lambda: empty)
            return i + 1, batches.take(more, drawn), function.carried.after(logs, new)

        done, _, logs = tf.while_loop(
            lambda i, drawn, logs: function.goes_on(tf.logical_and(i < steps, batches.exists(drawn))),
            body,
            (tf.constant(0), batches.take(first), function.start()),
        )
        return done, function.logs(function.carried.end(logs))

    return run
