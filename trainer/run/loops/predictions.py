"""Predicts the batches of one layout: one in a call, or many in a loop of the graph."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from ....compat.tensorflow_graphs.graphs import graph_for, graph_function, only_graph
from ...inputs.sources.source import Chunk
from ..outputs import ShapesVary, loop_spec
from .compiled import compile_for
from .drawn_batches import batches_of
from .step_function import StepFunction

FEWEST_STEPS = 8  # shorter loops, because of callbacks or slow steps, gain nothing
FEWEST_BATCHES = 64  # predicted one by one before: compiling the loop costs as much as these


class Predictions:
    """`predictions(inputs, steps)`: the number of batches and their outputs, in a loop on one replica with fixed shapes."""

    def __init__(self, function: StepFunction, chunk: Chunk) -> None:
        self._function, self._chunk = function, dataclasses.replace(chunk, inputs=None)
        self._strategy, eager = function.model.distribute_strategy, function.model.run_eagerly
        once = self._predict if chunk.open_ended else self._read_and_predict
        self._once = once if eager else graph_function(once, reduce_retracing=True)
        self.graphs = () if eager else (self._once,)
        self._batches = batches_of(self._chunk, self._strategy, *([] if eager else [graph_function]))
        unlike = eager or not function.alone or not function.model._runner.partitions
        self._may_loop = not (unlike or chunk.per_worker or chunk.signature is None)
        self._like: Any = None
        self._seen = 0
        self._loop: Any = None

    def __call__(self, inputs: Any, steps: int) -> tuple[Any, list[Any]]:
        """See the class."""
        if self._may_loop and self._seen >= FEWEST_BATCHES and steps >= FEWEST_STEPS:
            function, chunk = self._function, self._chunk
            if self._loop is None:
                loop = function.loop(function.global_step, chunk, like=self._like)
                self._loop, function.fresh = compile_for(loop, chunk.signature).function, True
            try:
                return only_graph(self._loop)(inputs, tf.constant(steps, tf.int32))
            except ShapesVary:
                self._may_loop = False
        done, outputs = run_one_by_one(self._function, self._each, inputs, steps)
        self._seen += done
        if outputs and self._may_loop and self._like is None:
            specs = [loop_spec(leaf, self._chunk.batch_size) for leaf in keras.tree.flatten(outputs[0])]
            self._may_loop = None not in specs
            self._like = keras.tree.pack_sequence_as(outputs[0], specs)
        return done, outputs

    def _predict(self, batch: Any, samples: Any, worker_samples: Any = None) -> Any:
        return self._function.global_step(batch, samples, worker_samples)

    def _read_and_predict(self, inputs: Any, i: tf.Tensor) -> Any:
        chunk = self._chunk
        part = chunk.part_reader and functools.partial(chunk.part_reader, inputs, i)
        return self._function.global_step(chunk.reader(inputs, i), chunk.batch_size, part=part)

    def _each(self, inputs: Any, steps: int) -> Iterator[tuple[int, list[Any]]]:
        """Predict each batch until the data ends; of several workers' own data those of all samples."""
        drawn = None
        for i in range(steps):
            self._function.reached.begin(i)
            given: Any = inputs, tf.constant(i)
            if self._chunk.open_ended:
                drawn = self._batches.take(self._chunk.reader(*given), drawn)
                if not self._batches.exists(drawn):
                    return
                batch, _, *counts = self._batches.arguments(drawn)
                given = batch, None, *counts
            yield 1, [graph_for(self._once, given)(*given)]


def run_one_by_one(
    function: StepFunction,
    each: Callable[[Any, int], Iterator[tuple[Any, Any]]],
    inputs: Any,
    steps: Any,
    *_: Any,
) -> tuple[int, Any]:
    """Return the steps that ran, and their results; `each(inputs, steps)` yields (whether it ran, results) of each."""
    done, results = 0, function.results()
    for ran, new in each(inputs, int(steps)):
        if not int(ran):
            break
        done, results = done + 1, function.results(results, new)
        if function.is_halted():
            break
    return done, results
