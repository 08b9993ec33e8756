"""Chooses the loop over steps for a layout of input, and compiles it."""

import dataclasses
import functools
import warnings
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from ....compat.tensorflow_graphs.graphs import first_graph
from ...inputs.sources.readers import ITERATORS
from ...inputs.sources.source import Chunk
from ..xla import xla_loops
from ..xla.xla_rule import follows_rule, reason_in_step
from .compiled import XLA, Compiled, compile_for, inputs_and_steps
from .predictions import Predictions, run_one_by_one
from .step_function import StepFunction


class LoopedSteps(StepFunction):
    """A `StepFunction` that chooses the loop over its steps for each layout of input."""

    def compile_loop(self, chunk: Chunk) -> Compiled:
        """Compile the loop for chunks with the layout of `chunk`; may change the backend."""
        if self.predicts:
            predictions = Predictions(self, chunk)
            return Compiled(predictions, inputs_and_steps, predictions.graphs)
        if self.model.run_eagerly:
            return Compiled(self.loop(self.global_step, chunk), inputs_and_steps)
        by_rule = follows_rule(self, chunk)
        compiled = xla_loops.compile_loop(self, chunk) if self.alone and self.backend == XLA else None
        whole = compiled is not None  # the loop is one program
        if compiled is None:
            loop = self.loop(xla_loops.step_in_graph(self, chunk), chunk)
            first = not (self.alone or chunk.open_ended)
            compiled = compile_for(loop, None if chunk.open_ended else chunk.signature, first)
            if not self.alone and self._collectives_vary(compiled, chunk):
                each = functools.partial(self._single_steps, compiled, first)
                compiled = compiled._replace(function=functools.partial(run_one_by_one, self, each))
        if not by_rule:
            return compiled
        try:
            self._trace(compiled, chunk)
            reason = reason_in_step(self, compiled.graphs[0])
        except (tf.errors.OpError, ValueError, TypeError, NotImplementedError) as error:
            # An error of the user's code is raised again.
            reason = f"the step cannot be traced for XLA: {str(error).partition(chr(10))[0][:200]}"
        if reason is None:
            return self._or_graph(compiled, chunk, whole)
        self.refuse(reason)
        return self.compile_loop(chunk)

    def _collectives_vary(self, loop: Compiled, chunk: Chunk) -> bool:
        """Return whether each step is a call, because replicas gather shapes that vary: a collective keeps its own."""
        self.open_collectives.clear()
        self._trace(loop, chunk)
        return bool(self.open_collectives)

    def _trace(self, loop: Compiled, chunk: Chunk) -> None:
        """Trace the first graph of a loop, unless it was traced before."""
        graph = loop.graphs[0]
        if first_graph(graph) is None:
            graph.get_concrete_function(*(loop.arguments(chunk) if graph.input_signature is None else ()))

    def _single_steps(self, loop: Compiled, first: bool, inputs: Any, steps: int) -> Iterator[Any]:
        """Call `loop` for every step separately: from number `first` on, or for the next batch of an iterator."""
        for i in range(steps):
            self.reached.begin(i)
            span = (i + 1, i) if first else (1,)
            yield loop.function(inputs, *(tf.constant(number, tf.int32) for number in span))

    def _or_graph(self, loop: Compiled, chunk: Chunk, whole: bool) -> Compiled:
        """Return `loop`, which falls back to the plain graph for good if XLA does not support the step.

        XLA compiles at the first call: the `whole` loop before its first step, so it is called for no step at first; else
        each step where it begins. A batch that an iterator has yielded for such a step is lost, so that this is an error.
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
                if not whole and (self.reached.count() != 0 or isinstance(this.inputs, ITERATORS)):
                    error.add_note(
                        "If XLA does not support this step: pass `jit_compile=False` to `compile`."
                    )
                    raise
                cause = str(error).partition("\n")[0][:200]
            else:
                return chosen[0](*arguments)
            self.refuse("XLA does not support the step")
            chosen[0] = self.find_compiled(this)[0].function
            result = chosen[0](*arguments)  # an error of the step itself is raised again
            warnings.warn(
                f"XLA does not support this step, which runs in the plain graph: {cause}", stacklevel=2
            )
            return result

        return loop._replace(function=run)
