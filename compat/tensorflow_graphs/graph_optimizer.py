"""How TensorFlow optimizes a graph before it runs for the first time."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from ..upstream_places import ConfigProto, RewriterConfig, context

# TensorFlow's function call options, and our modified copies.
_made: list[tuple[Any, Any]] = []


@contextlib.contextmanager
def optimize_briefly() -> Iterator[None]:
    """Optimize graphs that first run inside in one round, without passes for GPUs; not with a GPU or TPU."""
    current: Any = context.context()
    usual = current.function_call_options  # of this thread
    ours = current.function_call_options = _briefly(usual)
    try:
        yield
    finally:
        if current.function_call_options is ours:  # else other code has set options inside
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
