"""Steps under XLA: on one replica the whole loop, on several each replica's computations between collectives."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ....compat.keras_private.variables import plain_variable
from ....compat.tensorflow_graphs.graphs import first_graph, graph_function, only_graph
from ....distribute.hardware.devices import is_gpu
from ...inputs.batch import is_dense, sample_counts
from ...inputs.sources.readers import ITERATORS, for_xla
from ...inputs.sources.source import Chunk
from ..loops.compiled import XLA, Compiled, compile_for, inputs_and_steps
from ..loops.compiled_calls import UNKNOWN
from ..loops.step_function import StepFunction

# XLA's loops on CPUs run these on one thread.
_SLOW_LOOPS_ON_CPU = ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "Conv2DBackpropInput")


def step_in_graph(function: StepFunction, chunk: Chunk) -> Callable[..., Any]:
    """Return the step for a loop that XLA does not compile as a whole: `function.global_step`, with XLA if requested."""
    asked = function.model.jit_compile
    if function.alone:
        by_itself = asked or (function.backend == XLA and is_gpu(function.device()))
        return functools.partial(_step_by_itself, function) if by_itself else function.global_step
    full = chunk.batch_size is not None and chunk.batch_size == function.full_size and not chunk.open_ended
    if asked or (function.backend == XLA and full):
        return functools.partial(function.global_step, compiles=True)
    return function.global_step


def _step_by_itself(
    function: StepFunction, batch: Any, samples: int | None, worker_samples: Any = None, after: Any = ()
) -> Any:
    """Return one step, compiled; uncompiled where XLA does not support a part of the batch (strings)."""
    leaves = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
    # XLA takes tensors of numbers. Their shape may be unknown: XLA compiles for each one that occurs.
    if not all(isinstance(leaf, tf.Tensor) and leaf.dtype not in (tf.string, tf.variant) for leaf in leaves):
        return function.global_step(batch, samples, worker_samples, after)
    for hook in function.hooks():
        hook.before_step(batch)
    step = functools.partial(function.global_step, samples=samples, after=after, in_xla=True, hooks=False)
    with tf.device(function.device()):
        return graph_function(step, jit_compile=True)(batch)


def compile_loop(function: StepFunction, chunk: Chunk) -> Compiled | None:
    """Return the loop as one XLA program on one replica; None if impossible, or slow (a GPU, and arrays on the host)."""
    leaves = tf.nest.flatten(chunk.inputs, expand_composites=True)
    held = next((leaf for leaf in leaves if leaf is not None), None)
    far = is_gpu(function.device()) and not is_gpu(getattr(held, "device", ""))
    stacked = chunk.usual_batch_size is not None and (not far or stack_size(chunk) >= FEWEST_FOR_GPU)
    if chunk.signature is None or (far and not stacked):
        return None
    if stacked:
        if function.recorder is not None and function.recorder.halts:
            return None  # batches of a stack are drawn before it is known whether the loop reaches them
        layout = {"reader": _read_stack, "batch_size": chunk.usual_batch_size, "open_ended": False}
        loop = _loop_in_xla(function, dataclasses.replace(chunk, **layout))
        stacks = Stacks(function, chunk, loop, step_in_graph(function, chunk))
        compiled = Compiled(stacks, inputs_and_steps, (stacks.loop, stacks.single))
    else:
        worth_it = function.model.jit_compile or chunk.batch_size == function.full_size
        if not has_one_size(function, chunk) or not worth_it:
            return None
        compiled = compile_for(_loop_in_xla(function, chunk), chunk.signature, jit_compile=True)
        compiled = compiled._replace(function=functools.partial(_on_device, function, compiled.function))
    slow = function.model.jit_compile and slow_loop(operations(compiled.graphs[0]))
    return None if slow else compiled


def _on_device(function: StepFunction, loop: Any, inputs: Any, steps: tf.Tensor) -> Any:
    """Call a loop on the model's device: XLA compiles for one device, which need not be the first."""
    function.reached.steps.assign(UNKNOWN, read_value=False)  # unknown in XLA
    with tf.device(function.device()):
        return only_graph(loop)(inputs, steps)


def has_one_size(function: StepFunction, chunk: Chunk) -> bool:
    """Return whether XLA can run on the chunk's batches: their shapes are known, and most have the same.

    On one GPU, which compiles each step by itself, their number of samples may be unknown, as in Keras.
    """
    if chunk.signature is None or chunk.per_worker:
        return False
    if chunk.usual_batch_size is None and isinstance(chunk.inputs, ITERATORS):
        return function.alone and is_gpu(function.device()) and is_dense(chunk.inputs.element_spec)
    return chunk.usual_batch_size is not None or (chunk.batch_size is not None and not chunk.open_ended)


def operations(function: Any) -> set[str]:
    """Return the types of the operations in a `tf.function`, traced or with a signature, and in the functions it calls."""
    graph = first_graph(function) or function.get_concrete_function().graph
    names = {operation.type for operation in graph.get_operations()}
    for called in graph.as_graph_def(add_shapes=False).library.function:
        names.update(node.op for node in called.node_def)
    return names


def slow_loop(names: set[str]) -> bool:
    """Return whether XLA's loops are slow at one of the operations: convolutions on CPUs."""
    return not tf.config.list_physical_devices("GPU") and any(name in names for name in _SLOW_LOOPS_ON_CPU)


def _loop_in_xla(function: StepFunction, chunk: Chunk) -> Callable[..., Any]:
    loop = function.loop(functools.partial(function.global_step, in_xla=True), chunk, in_xla=True)

    def run(inputs: Any, steps: tf.Tensor) -> Any:
        with for_xla():
            return loop(inputs, steps)

    return run


def _as_dtype(tensor: Any, dtype: tf.DType) -> tf.Tensor:
    return tf.identity(tensor) if tensor.dtype == dtype else tf.bitcast(tensor, dtype)


def _read_stack(stack: Any, i: tf.Tensor) -> Any:
    """Return the reader of `Stacks`: batch `i` of a stack."""
    return tf.nest.map_structure(lambda batches: tf.gather(batches, i), stack)


MOST_STEPS = 1024
MOST_BYTES = 64 * 2**20  # of a stack, where it is more than one batch
# Batches of a stack for a GPU, which computes nothing during the copy. Larger batches cost more than they save.
FEWEST_FOR_GPU = 64


def stack_size(chunk: Chunk) -> int:
    """Return the number of batches in a stack."""
    leaves = tf.nest.flatten(chunk.inputs.element_spec)
    assert chunk.usual_batch_size is not None
    size = sum(chunk.usual_batch_size * math.prod(leaf.shape[1:]) * leaf.dtype.size for leaf in leaves)
    return max(1, min(MOST_STEPS, MOST_BYTES // max(1, size)))


class Stacks:
    """Draws batches into buffers, copies those to the device if it is a GPU, and runs the steps on them. Owns the buffers.

    A batch with an unusual number of samples runs alone, in its turn. Training still uses batches that were drawn before the
    pipeline failed. `loop(stack, steps)` runs the steps on the first batches of a stack, a nest of `(size, batch, ...)`, and
    `single(batch, None)` a step on one batch with any number of samples; both are compiled here.
    """

    def __init__(
        self, function: StepFunction, chunk: Chunk, loop: Callable[..., Any], single: Callable[..., Any]
    ) -> None:
        assert chunk.usual_batch_size is not None
        self._reached, self._device = function.reached.steps, function.device()
        self._samples: int = chunk.usual_batch_size
        self._exact = not chunk.open_ended and chunk.batch_size is not None
        self._reader, self._open_ended = chunk.reader, chunk.open_ended
        spec = chunk.inputs.element_spec
        self.size = stack_size(chunk)
        shapes = [[self.size, self._samples, *leaf.shape[1:]] for leaf in tf.nest.flatten(spec)]
        dtypes = [leaf.dtype for leaf in tf.nest.flatten(spec)]
        # To a GPU a stack is copied at once: a copy of each batch would take longer than a small model's step.
        self._copies = is_gpu(self._device)
        # TensorFlow keeps variables of 32-bit integers on the host.
        held = [tf.float32 if self._copies and dtype == tf.int32 else dtype for dtype in dtypes]
        with tf.device(self._device):
            self._near = [plain_variable(tf.zeros(shape, dtype)) for shape, dtype in zip(shapes, held)]
        with tf.device("CPU:0"):
            self._drawn = plain_variable(tf.constant(0))
            self._buffers = self._near
            if self._copies:
                self._buffers = [plain_variable(tf.zeros(*of)) for of in zip(shapes, dtypes)]

        def run(steps: tf.Tensor) -> Any:
            stack = [_as_dtype(b, dtype) for b, dtype in zip(self._near, dtypes)]
            return loop(tf.nest.pack_sequence_as(spec, stack), steps)[1]

        def copy(steps: tf.Tensor) -> None:
            for near, buffer in zip(self._near, self._buffers):
                near[:steps].assign(_as_dtype(buffer[:steps], near.dtype))

        self.loop = graph_function(run, jit_compile=True, input_signature=[tf.TensorSpec([], tf.int32)])
        self._copy = graph_function(copy, input_signature=[tf.TensorSpec([], tf.int32)])
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
                    with tf.device("CPU:0" if self._copies else self._device):
                        last = only_graph(self._draw)(iterator, tf.constant(wanted))
                except Exception as error:
                    failure = error
                drawn = int(self._drawn)
                if drawn:
                    self._reached.assign(UNKNOWN, read_value=False)  # unknown in XLA
                    if self._copies:
                        only_graph(self._copy)(tf.constant(drawn))
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
