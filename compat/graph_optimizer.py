"""How TensorFlow optimizes a graph before it runs for the first time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.config_pb2 import ConfigProto
from tensorflow.core.protobuf.rewriter_config_pb2 import RewriterConfig
from tensorflow.python.eager import context

# TensorFlow's options of the calls of functions, and ours that were made of them.
_made: list[tuple[Any, Any]] = []


@contextlib.contextmanager
def optimized_briefly() -> Iterator[None]:
    """Graphs that run first inside are optimized once over, where TensorFlow does it twice, and for the host alone.

    The second round finds next to nothing in a step, on the host there is nothing to find for what saves a GPU's memory or
    orders its kernels, and the passes named "tfg" look for branches and loops that are not lowered yet, of which a step has
    none. Together they take about a quarter of the time to the first step of a large model. What the user has set stays.
    With a GPU or TPU all is left to TensorFlow.
    """
    current: Any = context.context()
    usual = current.function_call_options  # an object of this thread's
    ours = current.function_call_options = _briefly(usual)
    try:
        yield
    finally:
        if current.function_call_options is ours:  # else somebody has set something inside
            current.function_call_options = usual


def _briefly(usual: Any) -> Any:
    for known, ours in _made:
        if known is usual:
            return ours
    ours = usual
    if all(device.device_type == "CPU" for device in tf.config.list_physical_devices()):
        config = ConfigProto.FromString(usual.config_proto_serialized)
        rewriter = config.graph_options.rewrite_options
        rewriter.meta_optimizer_iterations = rewriter.meta_optimizer_iterations or RewriterConfig.ONE
        rewriter.memory_optimization = rewriter.memory_optimization or RewriterConfig.NO_MEM_OPT
        rewriter.layout_optimizer = rewriter.layout_optimizer or RewriterConfig.OFF
        rewriter.disable_tfg_optimizer = True
        ours = context.FunctionCallOptions(usual.executor_type, config)
    _made[:] = [(usual, ours), *_made[:3]]
    return ours
