"""Batches of a `tf.data` pipeline for XLA, which cannot draw them: a stack is drawn, then a compiled loop runs on it."""

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ....compat.keras_private.variables import plain_variable
from ....compat.tensorflow_graphs.graphs import graph_function, only_graph
from ...inputs.batch import sample_counts
from ...inputs.sources.source import Chunk
from ..loops.compiled_calls import UNKNOWN
from ..loops.step_function import StepFunction

MOST_STEPS = 1024
MOST_BYTES = 64 * 2**20  # of a stack, where it is more than one batch


class Stacks:
    """Draws batches into buffers on the device and runs the steps on them. Owns the buffers.

    A batch with an unusual number of samples runs alone, in its turn. Training still uses batches that were drawn before the
    pipeline failed. `loop(stack, steps)` runs the steps on the first batches of a stack, a nest of `(size, batch, ...)`, and
    `single(batch, None)` a step on one batch with any number of samples; both are compiled here.
    """

    def __init__(
        self, function: StepFunction, chunk: Chunk, loop: Callable[..., Any], single: Callable[..., Any]
    ) -> None:
        assert chunk.usual_batch_size is not None
        self._reached, self._device = function.reached_steps, function.device()
        self._samples: int = chunk.usual_batch_size
        self._exact = not chunk.open_ended and chunk.batch_size is not None
        self._reader, self._open_ended = chunk.reader, chunk.open_ended
        spec = chunk.inputs.element_spec
        shapes = [[self._samples, *leaf.shape[1:]] for leaf in tf.nest.flatten(spec)]
        dtypes = [leaf.dtype for leaf in tf.nest.flatten(spec)]
        size = sum(math.prod(shape) * dtype.size for shape, dtype in zip(shapes, dtypes))
        self.size = max(1, min(MOST_STEPS, MOST_BYTES // max(1, size)))
        with tf.device(self._device):
            self._buffers = [
                plain_variable(tf.zeros([self.size, *shape], dtype)) for shape, dtype in zip(shapes, dtypes)
            ]
        with tf.device("CPU:0"):
            self._drawn = plain_variable(tf.constant(0))

        def run(steps: tf.Tensor) -> Any:
            return loop(tf.nest.pack_sequence_as(spec, [tf.identity(b) for b in self._buffers]), steps)[1]

        self.loop = graph_function(run, jit_compile=True, input_signature=[tf.TensorSpec([], tf.int32)])
        self._draw = graph_function(
            self._draw_full if self._exact else self._draw_until_another,
            input_signature=[tf.type_spec_from_value(chunk.inputs), tf.TensorSpec([], tf.int32)],
        )
        self.single = graph_function(lambda batch: function.logs(single(batch, None)), reduce_retracing=True)

    def __call__(self, iterator: Any, steps: int) -> tuple[int, Any]:
        """Run up to `steps` steps; return how many, and the last logs. The pipeline's errors come after earlier batches."""
        with tf.device(self._device):
            done, logs = 0, {}
            if steps == 0:
                self.loop(tf.constant(0))  # only compiles
            while done < steps:
                wanted = min(self.size, steps - done)
                failure, last = None, None
                self._drawn.assign(0, read_value=False)
                try:
                    last = only_graph(self._draw)(iterator, tf.constant(wanted))
                except Exception as error:
                    failure = error
                drawn = int(self._drawn)
                if drawn:
                    self._reached.assign(UNKNOWN, read_value=False)  # unknown in XLA
                    logs = only_graph(self.loop)(tf.constant(drawn))
                done += drawn
                self._reached.assign(done, read_value=False)
                if failure is not None:
                    raise failure
                if self._exact or last is None:
                    continue
                full, batch = last
                if bool(full):
                    continue
                if not bool(batch.has_value()):
                    break
                logs = self.single(batch.get_value())
                done += 1
            return done, logs

    def _draw_full(self, iterator: Any, count: tf.Tensor) -> Any:
        """Draw `count` batches of the usual size; a loop in a function that returns nothing is three times slower."""

        def body(i: tf.Tensor) -> Any:
            self._keep(i, self._reader(iterator, i))
            return i + 1

        return tf.while_loop(lambda i: i < count, body, (tf.constant(0),))

    def _draw_until_another(self, iterator: Any, count: tf.Tensor) -> Any:
        """Draw up to `count` batches; end with the first that has another size, which is returned, or with the data."""

        def body(i: tf.Tensor, full: tf.Tensor, batch: Any) -> Any:
            batch = self._reader(iterator, i)
            if not self._open_ended:
                batch = tf.experimental.Optional.from_value(batch)
            full = tf.cond(
                batch.has_value(),
                lambda: tf.reduce_all(
                    [tf.equal(samples, self._samples) for samples in sample_counts(batch.get_value())]
                ),
                lambda: tf.constant(False),
            )
            tf.cond(full, lambda: self._keep(i, batch.get_value()), lambda: tf.constant(0))
            return i + 1, full, batch

        empty = tf.experimental.Optional.empty(iterator.element_spec)
        start = (tf.constant(0), tf.constant(True), empty)
        _, full, batch = tf.while_loop(lambda i, full, batch: tf.logical_and(i < count, full), body, start)
        return full, batch

    def _keep(self, i: tf.Tensor, batch: Any) -> tf.Tensor:
        leaves = tf.nest.flatten(batch)
        for buffer, leaf in zip(self._buffers, leaves):
            buffer[i].assign(tf.ensure_shape(leaf, buffer.shape[1:]))
        with tf.control_dependencies(leaves):  # a batch that could not be read is not counted
            return self._drawn.assign_add(1).read_value()
