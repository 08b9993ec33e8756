"""Chooses the loop over steps for a layout of input, and compiles it."""

from __future__ import annotations

import dataclasses
import warnings
from typing import Any

import tensorflow as tf

from ...inputs.sources.readers import ITERATORS
from ...inputs.sources.source import Chunk
from ..xla import xla_loops
from ..xla.xla_rule import decides, reason_in_layout, reason_in_step
from .compiled import GRAPH, XLA, Compiled, inputs_and_steps, signed
from .step_function import StepFunction


def loop_for(function: StepFunction, chunk: Chunk) -> Compiled:
    """The loop over the steps of `function` for chunks with the layout of `chunk`."""
    if function.model.run_eagerly:
        return Compiled(function.loop(function.global_step, chunk), inputs_and_steps)
    by_rule = function.backend == XLA and not function.model.jit_compile and decides(function, chunk)
    if by_rule and (reason := reason_in_layout(function, chunk)) is not None:
        function.use(GRAPH, reason)
        by_rule = False
    compiled = xla_loops.compile_loop(function, chunk) if function.alone and function.backend == XLA else None
    whole = compiled is not None  # the loop is one program
    if compiled is None:
        loop = function.loop(xla_loops.step_in_graph(function, chunk), chunk)
        first = not (function.alone or chunk.open_ended)
        compiled = signed(loop, None if chunk.open_ended else chunk.signature, first)
        if not function.alone and _shapes_vary(function, compiled, chunk):
            compiled = _one_by_one(function, compiled, first)
    if not by_rule:
        return compiled
    try:
        reason = reason_in_step(function, compiled.graphs[0])
    except (tf.errors.OpError, ValueError, TypeError, NotImplementedError):
        reason = "the step cannot be traced for XLA"  # an error of the user's code is raised again
    if reason is None:
        return _or_graph(function, compiled, chunk, whole)
    function.refuse(reason)
    return loop_for(function, chunk)


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


def _or_graph(function: StepFunction, loop: Compiled, chunk: Chunk, whole: bool) -> Compiled:
    """`loop`, or the plain graph from then on, where XLA does not support the step.

    XLA compiles at the first call: the `whole` loop before its first step, so it is called for no step at first; else each
    step where it begins. A batch that an iterator has yielded for such a step is lost, so that this is an error.
    """
    chosen: list[Any] = []
    layout = dataclasses.replace(chunk, inputs=None)  # the function outlives the data

    def run(*arguments: Any) -> Any:
        if chosen:
            return chosen[0](*arguments)
        chosen.append(loop.function)
        this = dataclasses.replace(layout, inputs=arguments[0])
        try:
            if not whole:
                return loop.function(*arguments)
            loop.function(*loop.arguments(dataclasses.replace(this, steps=0)))
        except (tf.errors.OpError, ValueError) as error:
            if not whole and (function.reached() != 0 or isinstance(this.inputs, ITERATORS)):
                error.add_note("If XLA does not support this step: pass `jit_compile=False` to `compile`.")
                raise
            cause = str(error).partition("\n")[0][:200]
        else:
            return chosen[0](*arguments)
        function.refuse("XLA does not support the step")
        chosen[0] = function.compiled_for(this)[0].function
        result = chosen[0](*arguments)  # an error of the step itself is raised again
        warnings.warn(f"XLA does not support this step, which runs in the plain graph: {cause}", stacklevel=2)
        return result

    return loop._replace(function=run)
