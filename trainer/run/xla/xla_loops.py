"""Steps under XLA: on one replica the whole loop, on several each replica's computations between collectives."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ....compat.tensorflow_graphs.graphs import first_graph, graph_function, only_graph
from ....distribute.hardware.devices import is_gpu
from ...inputs.sources.readers import for_xla
from ...inputs.sources.source import Chunk
from ..loops.compiled import XLA, Compiled, compile_for, inputs_and_steps
from ..loops.compiled_calls import UNKNOWN
from ..loops.step_function import StepFunction
from .batch_stacks import Stacks

# XLA's loops on CPUs run these on one thread.
_SLOW_LOOPS_ON_CPU = ("Conv2D", "Conv3D", "DepthwiseConv2dNative", "Conv2DBackpropInput")


def step_in_graph(function: StepFunction, chunk: Chunk) -> Callable[..., Any]:
    """The step for a loop that XLA does not compile as a whole: `function.global_step`, with XLA inside where requested."""
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
    """Return the loop as one XLA program on one replica; None if impossible, or slow (data on the host, model on a GPU)."""
    leaves = tf.nest.flatten(chunk.inputs, expand_composites=True)
    held = next((leaf for leaf in leaves if leaf is not None), None)
    far = is_gpu(function.device()) and not is_gpu(getattr(held, "device", ""))
    if chunk.signature is None or far:
        return None
    if chunk.usual_batch_size is not None:
        if function.recorder is not None and function.recorder.halts:
            return None  # batches of a stack are drawn before it is known whether the loop reaches them
        layout = {"reader": _read_stack, "batch_size": chunk.usual_batch_size, "open_ended": False}
        loop = _loop_in_xla(function, dataclasses.replace(chunk, **layout))
        stacks = Stacks(function, chunk, loop, step_in_graph(function, chunk))
        compiled = Compiled(stacks, inputs_and_steps, (stacks.loop, stacks.single))
    else:
        worth_it = function.model.jit_compile or chunk.batch_size == function.full_size
        if not has_one_size(chunk) or not worth_it:
            return None
        compiled = compile_for(_loop_in_xla(function, chunk), chunk.signature, jit_compile=True)
        compiled = compiled._replace(function=functools.partial(_on_device, function, compiled.function))
    slow = function.model.jit_compile and slow_loop(operations(compiled.graphs[0]))
    return None if slow else compiled


def _on_device(function: StepFunction, loop: Any, inputs: Any, steps: tf.Tensor) -> Any:
    """Call a loop on the model's device: XLA compiles for one device, which need not be the first."""
    function.reached_steps.assign(UNKNOWN, read_value=False)  # unknown in XLA
    with tf.device(function.device()):
        return only_graph(loop)(inputs, steps)


def has_one_size(chunk: Chunk) -> bool:
    """Return whether XLA can run on the chunk's batches in a loop: their shapes are known, and most have the same."""
    if chunk.signature is None or chunk.per_worker:
        return False
    if chunk.usual_batch_size is None:
        return chunk.batch_size is not None and not chunk.open_ended
    leaves = tf.nest.flatten(chunk.inputs.element_spec, expand_composites=True)
    return all(leaf.shape[1:].is_fully_defined() for leaf in leaves)


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


def _read_stack(stack: Any, i: tf.Tensor) -> Any:
    """Return the reader of `Stacks`: batch `i` of a stack."""
    return tf.nest.map_structure(lambda batches: tf.gather(batches, i), stack)
