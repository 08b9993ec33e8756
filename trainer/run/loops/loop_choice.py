"""Chooses the loop over steps for a layout of input, and compiles it."""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from ...inputs.sources.source import Chunk
from ..xla import xla_loops
from .compiled import GRAPH, XLA, Compiled, inputs_and_steps, signed
from .step_function import StepFunction


def loop_for(function: StepFunction, chunk: Chunk) -> Compiled:
    """The loop over the steps of `function` for chunks with the layout of `chunk`."""
    if function.model.run_eagerly:
        return Compiled(function.loop(function.global_step, chunk), inputs_and_steps)
    compiled = xla_loops.compile_loop(function, chunk) if function.alone and function.backend == XLA else None
    if compiled is not None:
        return compiled
    loop = function.loop(xla_loops.step_in_graph(function, chunk), chunk)
    first = not (function.alone or chunk.open_ended)
    compiled = signed(loop, None if chunk.open_ended else chunk.signature, first)
    if not function.alone and _shapes_vary(function, compiled, chunk):
        return _one_by_one(function, compiled, first)
    in_graph = function.backend == GRAPH or function.model.jit_compile
    return compiled if in_graph else _or_graph(function, compiled, chunk)


def _shapes_vary(function: StepFunction, loop: Compiled, chunk: Chunk) -> bool:
    """Whether each step needs a separate call, because replicas gather samples or slices whose number differs.

    TensorFlow keeps the shape of a collective for a whole call. Such collectives are known once the loop has been traced.
    """
    function.shapes_vary = False
    has_signature = chunk.signature is not None and not chunk.open_ended
    loop.function.get_concrete_function(*(() if has_signature else loop.arguments(chunk)))
    return function.shapes_vary


def _one_by_one(function: StepFunction, loop: Compiled, first: bool) -> Compiled:
    """`loop`, called for every step separately: from number `first` on, or for the next batch of an iterator."""

    def run(inputs: Any, steps: tf.Tensor, *_: Any) -> tuple[int, dict[str, Any]]:
        logs: dict[str, Any] = {}
        for i in range(int(steps)):
            function.begin(i)
            span = (i + 1, i) if first else (1,)
            ran, new = loop.function(inputs, *(tf.constant(number, tf.int32) for number in span))
            if not int(ran):
                return i, logs
            logs = new
            if function.halted():
                return i + 1, logs
        return int(steps), logs

    return loop._replace(function=run)


def _or_graph(function: StepFunction, loop: Compiled, chunk: Chunk) -> Compiled:
    """`loop`, or the plain graph from then on, where its first call fails before any step.

    XLA compiles its steps at the first call. Only then an unsupported step is known.
    """
    chosen: list[Any] = []
    layout = dataclasses.replace(chunk, inputs=None)  # the function outlives the data

    def run(*arguments: Any) -> Any:
        if not chosen:
            chosen.append(loop.function)
            try:
                return loop.function(*arguments)
            except (tf.errors.OpError, ValueError):
                if function.reached() != 0:
                    raise
            function.backend = GRAPH
            chosen[0] = function.compiled_for(dataclasses.replace(layout, inputs=arguments[0]))[0].function
        return chosen[0](*arguments)

    return loop._replace(function=run)
