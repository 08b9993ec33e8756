"""Chooses the loop over steps for a layout of input, and compiles it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ....compat.tensorflow_graphs.graphs import graph_function
from ...inputs.sources.source import Chunk
from ..xla import xla_loops
from .compiled import GRAPH, XLA, Compiled, signed
from .other_loops import drawn_loop, eager_loop
from .step_function import StepFunction


def loop_for(function: StepFunction, chunk: Chunk) -> Compiled:
    """The loop over the steps of `function` for chunks with the layout of `chunk`."""
    if function.model.run_eagerly:
        return Compiled(eager_loop(function, chunk), lambda chunk: (chunk.inputs, chunk.steps))
    compiled = xla_loops.compile_loop(function, chunk) if function.alone and function.backend == XLA else None
    if compiled is not None:
        return compiled
    step = xla_loops.step_in_graph(function, chunk)
    if chunk.open_ended:
        compiled = Compiled(graph_function(drawn_loop(function, step, chunk)))
    else:
        loop = function.counted_loop(step, chunk.reader, chunk.batch_size, parts=chunk.part_reader)
        compiled = signed(loop, chunk.signature, first=not function.alone)
    if not function.alone:
        return _on_replicas(function, compiled, chunk)
    return _or_graph(function, compiled, chunk) if function.backend == XLA else compiled


def _on_replicas(function: StepFunction, loop: Compiled, chunk: Chunk) -> Compiled:
    """`loop`, or a version with a separate call for each step, where one loop cannot run several.

    TensorFlow keeps the shape of a collective for a whole call. So where replicas gather samples or slices whose number
    differs between steps, each step needs a separate call. This is known once the loop has been traced.
    """
    function.shapes_vary = False
    has_signature = chunk.signature is not None and not chunk.open_ended
    loop.function.get_concrete_function(*(() if has_signature else loop.arguments(chunk)))
    if function.shapes_vary:
        return Compiled(_OneByOne(function, loop.function, drawn=chunk.open_ended), loop.arguments)
    return loop if function.backend == GRAPH else _or_graph(function, loop, chunk)


def _or_graph(function: StepFunction, loop: Compiled, chunk: Chunk) -> Compiled:
    """A loop whose steps XLA compiles at the first call, or the plain graph, where XLA is not requested and fails."""
    if function.model.jit_compile:
        return loop
    in_graph = lambda: function.compiled_for(chunk)[0].function  # noqa: E731
    return Compiled(_GraphOnFailure(function, loop.function, in_graph), loop.arguments)


class _OneByOne:
    """Calls a loop for every step separately.

    Args:
        function: the steps.
        loop: `loop(inputs, steps, first)`, or `loop(inputs, steps)` where batches are drawn from an iterator.
        drawn: whether batches are drawn from an iterator.
    """

    def __init__(self, function: StepFunction, loop: Any, drawn: bool) -> None:
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
            if self._function.halted():
                return i + 1, logs
        return int(steps), logs


class _GraphOnFailure:
    """Calls `function`; after a failure of its first call before any step, the plain graph from then on.

    On several replicas XLA compiles at the first call. Only then an unsupported step is known.
    """

    def __init__(self, step_function: StepFunction, function: Any, in_graph: Callable[[], Any]) -> None:
        self._step_function, self._function, self._in_graph = step_function, function, in_graph
        self.functions = [function]
        self._called = False

    def __call__(self, *arguments: Any) -> Any:
        """Runs the steps."""
        first, self._called = not self._called, True
        try:
            return self._function(*arguments)
        except (tf.errors.OpError, ValueError):
            if not first or self._step_function.reached() != 0:
                raise
        self._step_function.backend = GRAPH
        self._function = self._in_graph()
        return self._function(*arguments)
