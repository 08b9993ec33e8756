"""Predictions of many batches in one call: a loop in the graph, for models whose answers have one shape.

Calling a compiled function once for each batch costs more than a small model's forward pass. The loop costs a second
trace, so it is used once the calls have taken longer than the first one did, most of which was tracing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ...compat.graphs import graph_function
from ..inputs.source import Chunk

FEWEST_STEPS = 8  # what callbacks or slow steps keep shorter than this gains nothing


class _ShapesVary(Exception):
    """The traced step's outputs have no fixed shape."""


class PredictLoop:
    """The loop for one layout of input; knows when it pays.

    Args:
        step: `step(inputs, i)`, the outputs for batch i of a chunk, while tracing.
        rows: int; rows of every batch.
    """

    def __init__(self, step: Callable[[Any, Any], Any], rows: int) -> None:
        self._step = step
        self._rows = rows
        self._like: Any = None
        self._function: Any = None
        self._first = self._others = 0.0
        self._refused = False

    def note(self, outputs: list[Any], began: float) -> None:
        """Takes down what batches that were predicted one by one gave, and how long they took, from `began` on."""
        seconds = time.perf_counter() - began
        if not outputs or self._refused:
            return
        if self._like is None:
            self._refused = not all(map(self._fits, keras.tree.flatten(outputs[0])))
            if not self._refused:
                self._like = keras.tree.map_structure(tf.TensorSpec.from_tensor, outputs[0])
                self._first = seconds
        else:
            self._others += seconds

    def pays(self, steps: int) -> bool:
        """Whether a chunk of `steps` batches should be predicted in the loop."""
        known = self._like is not None and not self._refused
        return known and steps >= FEWEST_STEPS and self._others > self._first

    def __call__(self, chunk: Chunk) -> Any:
        """The outputs for all rows of the chunk, in order; None if this model cannot be looped."""
        if self._function is None:
            signature = [chunk.signature, tf.TensorSpec([], tf.int32)]
            self._function = graph_function(self._run, input_signature=signature)
        try:
            return self._function(chunk.inputs, tf.constant(chunk.steps, tf.int32))
        except _ShapesVary:
            self._refused = True
            return None

    def _fits(self, leaf: Any) -> bool:
        return (
            isinstance(leaf, tf.Tensor) and leaf.shape.rank not in (None, 0) and leaf.shape[0] == self._rows
        )

    def _run(self, inputs: Any, steps: tf.Tensor) -> Any:
        like = keras.tree.flatten(self._like)
        arrays = [tf.TensorArray(leaf.dtype, steps, element_shape=leaf.shape) for leaf in like]

        def body(i: tf.Tensor, arrays: list[Any]) -> Any:
            leaves = keras.tree.flatten(self._step(inputs, i))
            if [leaf.shape.as_list() for leaf in leaves] != [leaf.shape.as_list() for leaf in like]:
                raise _ShapesVary
            return i + 1, [array.write(i, leaf) for array, leaf in zip(arrays, leaves)]

        _, arrays = tf.while_loop(lambda i, _: i < steps, body, (tf.constant(0), arrays))
        joined = [
            tf.reshape(array.stack(), [steps * self._rows, *leaf.shape[1:]])
            for array, leaf in zip(arrays, like)
        ]
        return keras.tree.pack_sequence_as(self._like, joined)
