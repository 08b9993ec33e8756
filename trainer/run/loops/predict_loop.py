"""Predictions of many batches in one call: a loop in the graph, for models whose outputs have a fixed shape."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ....compat.tensorflow_graphs.graphs import graph_function, only_graph
from ...inputs.sources.source import Chunk
from .compiled import with_none_specs

FEWEST_STEPS = 8  # shorter loops, because of callbacks or slow steps, gain nothing


class _ShapesVary(Exception):
    """The traced step's outputs have no fixed shape."""


class PredictLoop:
    """The loop for one layout of input; decides when it pays.

    The loop costs a second trace, so it is used once the calls have taken longer than the first one with its trace.
    `step(batch)` gives the outputs for a batch, while tracing. The batches of `chunk` may have any number of samples, and
    may end before its steps do.
    """

    def __init__(self, step: Callable[[Any], Any], chunk: Chunk) -> None:
        self._step, self._reader, self._open_ended = step, chunk.reader, chunk.open_ended
        self._samples = chunk.batch_size
        self._like: Any = None
        self._function: Any = None
        self._first = self._others = 0.0
        self._rejected = False

    def note(self, outputs: list[Any], began: float) -> None:
        """Records the outputs of batches that were predicted one by one, and their time since `began`."""
        seconds = time.perf_counter() - began
        if not outputs or self._rejected:
            return
        if self._like is None:
            self._rejected = not all(map(self._fits, keras.tree.flatten(outputs[0])))
            if not self._rejected:
                self._like = keras.tree.map_structure(self._spec, outputs[0])
                self._first = seconds
        else:
            self._others += seconds

    def pays(self, steps: int) -> bool:
        """Whether a chunk of `steps` batches should be predicted in the loop."""
        known = self._like is not None and not self._rejected
        return known and steps >= FEWEST_STEPS and self._others > self._first

    def __call__(self, chunk: Chunk) -> tuple[int, Any]:
        """The number of batches, and their outputs, in order; None if this model cannot be looped."""
        if self._function is None:
            signature = [with_none_specs(chunk.signature), tf.TensorSpec([], tf.int32)]
            self._function = graph_function(self._run, input_signature=signature)
        try:
            done, outputs = only_graph(self._function)(chunk.inputs, tf.constant(chunk.steps, tf.int32))
            return int(done), outputs
        except _ShapesVary:
            self._rejected = True
            return 0, None

    def _fits(self, leaf: Any) -> bool:
        if not isinstance(leaf, tf.Tensor) or leaf.shape.rank in (None, 0):
            return False
        return self._samples is None or leaf.shape[0] == self._samples

    def _spec(self, leaf: tf.Tensor) -> tf.TensorSpec:
        return tf.TensorSpec([self._samples, *leaf.shape[1:]], leaf.dtype)

    def _run(self, inputs: Any, steps: tf.Tensor) -> Any:
        like = keras.tree.flatten(self._like)
        arrays = [
            tf.TensorArray(leaf.dtype, 0, dynamic_size=True, element_shape=leaf.shape, infer_shape=False)
            for leaf in like
        ]
        if self._open_ended:
            done, arrays = self._until_the_end(inputs, steps, arrays)
        else:
            done, arrays = tf.while_loop(
                lambda i, _: i < steps,
                lambda i, arrays: (i + 1, self._write(arrays, i, self._reader(inputs, i))),
                (tf.constant(0), arrays),
            )
        return done, keras.tree.pack_sequence_as(self._like, [array.concat() for array in arrays])

    def _until_the_end(self, inputs: Any, steps: tf.Tensor, arrays: list[Any]) -> tuple[tf.Tensor, list[Any]]:
        """Predicts up to `steps` batches."""
        first = self._reader(inputs, tf.constant(0))
        empty = tf.experimental.Optional.empty(first.element_spec)

        def body(i: tf.Tensor, batch: Any, arrays: list[Any]) -> Any:
            arrays = self._write(arrays, i, batch.get_value())
            return i + 1, tf.cond(i + 1 < steps, lambda: self._reader(inputs, i + 1), lambda: empty), arrays

        start = (tf.constant(0), first, arrays)
        done, _, arrays = tf.while_loop(
            lambda i, batch, _: tf.logical_and(i < steps, batch.has_value()), body, start
        )
        return done, arrays

    def _write(self, arrays: list[Any], i: tf.Tensor, batch: Any) -> list[Any]:
        leaves = keras.tree.flatten(self._step(batch))
        if [self._spec(leaf) for leaf in leaves] != keras.tree.flatten(self._like):
            raise _ShapesVary
        return [array.write(i, leaf) for array, leaf in zip(arrays, leaves)]
