"""The parts of a first step, in seconds of CPU time: a stopwatch around functions of TensorFlow and of Unisono."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from unisono.compat.upstream_places import ConfigProto, FuncGraph, context

REST, TRACING, LABELLING, REBUILDING, CALL = "rest", "tracing", "labelling", "rebuilding", "call"


class Stopwatch:
    """Charges the time of this process to the innermost of the parts that are running."""

    def __init__(self) -> None:
        parts = (REST, TRACING, LABELLING, REBUILDING, CALL)
        self.seconds: dict[str, float] = dict.fromkeys(parts, 0.0)
        self._running, self._since = [REST], time.process_time()
        self._calls: list[
            tuple[float, Any, tuple[Any, ...]]
        ] = []  # seconds, options, arguments: all stay alive

    def start(self) -> None:
        """Forget what was measured, and begin."""
        self.seconds = dict.fromkeys(self.seconds, 0.0)
        self._calls.clear()
        self._since = time.process_time()

    def lap(self) -> None:
        """Charge the time since the last lap."""
        now = time.process_time()
        self.seconds[self._running[-1]] += now - self._since
        self._since = now

    def watch(self, owner: Any, name: str, part: str) -> None:
        """Charge the calls of a function to a part."""
        function = getattr(owner, name)

        def call_in_part(*args: Any, **kwargs: Any) -> Any:
            self.lap()
            self._running.append(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.lap()
                self._running.reverse()  # replicas take turns, so the part need not be the last
                self._running.remove(part)
                self._running.reverse()

        setattr(owner, name, call_in_part)

    def watch_tensorflow(self) -> None:
        """Charge the making of graphs, and the calls of functions."""
        self.watch(sys.modules[FuncGraph.__module__], "func_graph_from_py_func", TRACING)
        call = context.Context.call_function

        def call_and_note(*args: Any) -> Any:
            began = time.process_time()
            result = call(*args)
            self._calls.append((time.process_time() - began, args[0].function_call_options, args))
            return result

        context.Context.call_function = call_and_note  # pyright: ignore[reportAttributeAccessIssue]
        self.watch(context.Context, "call_function", CALL)

    def watch_unisono(self) -> None:
        """Charge the analysis of the step, and its copies on the replicas."""
        from unisono.trainer.partition.steps import traced_step

        self.watch(traced_step, "trace_on_one_device", TRACING)
        self.watch(traced_step, "partition_graph", LABELLING)
        self.watch(traced_step, "save_memory", LABELLING)
        self.watch(traced_step.TracedStep, "__call__", REBUILDING)

    def split_call(self, xla: bool) -> tuple[float, float]:
        """Return the seconds that XLA, or else Grappler, took in the longest call, and the rest of that call.

        The call is repeated: XLA does not compile again. Without Grappler, TensorFlow prepares the function again.
        """
        first, options, args = max(self._calls, key=lambda each: each[0])
        if not xla:
            config = ConfigProto.FromString(options.config_proto_serialized)
            config.graph_options.rewrite_options.disable_meta_optimizer = True
            options = context.FunctionCallOptions(options.executor_type, config)
        args[0].function_call_options = options
        began = time.process_time()
        args[0].call_function(*args[1:])
        again = time.process_time() - began
        return first - again, again


def measure_parts(begin: Callable[[Stopwatch], Any], xla: bool, ours: bool) -> dict[str, float]:
    """Return the seconds of each part until `begin` calls `lap` last, after `start`; "compiling" is part of the call.

    `begin` returns the owner of the compiled function.
    """
    watch = Stopwatch()
    watch.watch_tensorflow()
    if ours:
        watch.watch_unisono()
    tf.config.list_logical_devices()  # starts TensorFlow's devices
    owner = begin(watch)
    found = dict(watch.seconds)
    compiling, _ = watch.split_call(xla)
    del owner
    return {**found, "compiling": compiling, CALL: found[CALL] - compiling}
