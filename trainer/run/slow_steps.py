"""The two warnings of the loop: a callback makes every step a compiled call, or the step is compiled again and again."""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...callbacks.call_schedule import batch_hook_of, steps_until_call
from ...distribute.workers.agreement import spans_workers
from ...state.trained_model import FitState, TrainedModel
from ..inputs.batch import all_leaves
from .loops.compiled import GRAPH
from .loops.compiled_calls import CompiledCall

# Full batches and the last one, each as a graph and under XLA; or three sizes, and one graph for all.
MOST_COMPILATIONS = 4
_LEAST_STEPS, _LEAST_SECONDS = 20, 1.0  # shorter runs are not judged
_SHARE = 0.25  # of the time of a step, spent on the call and the callbacks


class SlowSteps:
    """Watches the compiled calls of one `fit`, and warns once of each. Context: host."""

    def __init__(self, model: TrainedModel, state: FitState) -> None:
        self._model, self._state = model, state
        self._function: Any = None
        self._layouts: list[list[tuple[str, str]]] = []  # of the batches for which the step was compiled
        self._traces, self._compiled = 0, 0  # of the function; in this fit
        self._watches_calls = model._fixed_steps is None and not model.run_eagerly
        self._steps, self._spent, self._outside = 0, 0.0, 0.0

    def begin(self, function: Any) -> None:
        """Begin the training steps of an epoch, or continue with another function."""
        self._before = dict(self._state.times.seconds)
        if function is not self._function:
            self._function, self._traces = function, function.compilations()

    def end_call(self, call: CompiledCall, done: int) -> None:
        """Note that a compiled call of `done` steps and its callbacks are over; not for workers, whose calls overlap."""
        if not self._model._runner.in_process:
            return
        traces = self._function.compilations()
        new, self._traces = traces - self._traces, traces
        if new:
            self._layouts.append(layout(self._state.source.spec, call))
            before, self._compiled = self._compiled, self._compiled + new
            if before <= MOST_COMPILATIONS < self._compiled:
                self._warn(describe_retracing(self._layouts, self._compiled))
        if self._watches_calls:
            self._watch_call(call, done, fresh=new > 0)

    def _watch_call(self, call: CompiledCall, done: int, fresh: bool) -> None:
        before, self._before = self._before, dict(self._state.times.seconds)
        if done > 1 or fresh:
            self._steps, self._spent, self._outside = 0, 0.0, 0.0
            return
        compute, callbacks = (
            self._before.get(part, 0.0) - before.get(part, 0.0) for part in ("compute", "callbacks")
        )
        self._steps, self._spent = self._steps + 1, self._spent + compute + callbacks
        self._outside += callbacks
        if self._steps < _LEAST_STEPS or self._spent < _LEAST_SECONDS:
            return
        self._watches_calls = False
        records = self._function.recorder is not None
        for callback in self._state.callbacks:
            if steps_until_call(callback, self._state.step, records_logs=records) == 1:
                mine = self._outside / self._steps + self._seconds_of_empty_call(call)
                whole = self._spent / self._steps
                self._warn(single_steps_text(callback, min(mine, whole), whole))
                return

    def _seconds_of_empty_call(self, call: CompiledCall) -> float:
        """Measure a compiled call that runs no step; 0 if none can be made, as it would read a batch, or meet others."""
        chunk, function, times = call.chunks[-1], self._function, self._state.times
        in_graph = function.backend == GRAPH and self._model._runner.partitions
        if chunk.open_ended or not in_graph or spans_workers(self._model.distribute_strategy):
            return 0.0
        empty = CompiledCall([dataclasses.replace(chunk, steps=0)], self._state.step)
        times.lap("other")
        before = times.seconds["other"]
        function(empty)
        times.lap("other")
        self._before = dict(times.seconds)
        return times.seconds["other"] - before

    def _warn(self, text: str) -> None:
        if text and self._state.chief:
            warnings.warn(text, UserWarning, stacklevel=2)


def single_steps_text(callback: Any, outside: float, whole: float) -> str:
    """Return the warning of a callback that is called after every step; empty if it costs little. Both in s per step."""
    if outside < _SHARE * whole:
        return ""
    hook, is_users = batch_hook_of(callback)
    advice = "choose a longer interval"
    if is_users:
        advice = (
            "add a method `steps_until_call(step)`, or declare `only_reads_logs = True` on the class if the hooks only read "
            "their arguments"
        )
    return (
        f"`{hook}` runs after every step, so each step is a separate compiled call: the call and the callbacks take "
        f"{1e3 * outside:.3g} of {1e3 * whole:.3g} ms. To call it less often, {advice}."
    )


def describe_retracing(layouts: Sequence[list[tuple[str, str]]], compiled: int) -> str:
    """Return the warning that names the part of the batch that changes."""
    changes = []
    for index, (name, _) in enumerate(layouts[-1]):
        seen = list(dict.fromkeys(each[index][1] for each in layouts if len(each) == len(layouts[-1])))
        if len(seen) > 1:
            changes.append(
                f"`{name}` was {', '.join(seen[:4])}. Use batches of one size: drop or pad the others"
            )
    cause = (
        "; ".join(changes) or "a callback calls `compile` or `make_train_function`, which should happen once"
    )
    return f"The training step was compiled {compiled} times, which costs far more than running it: {cause}."


def layout(spec: Any, call: CompiledCall) -> list[tuple[str, str]]:
    """Return (name, dtype and shape) of each part of the last batch, such as ("x", "float32 (32, 8)"), if known."""
    leaves, places = tf.nest.flatten(call.chunks[-1].inputs), range(len(tf.nest.flatten(spec)))
    named = all_leaves(tf.nest.pack_sequence_as(spec, places))  # `tf.nest` sorts the keys of dicts
    if len(leaves) < len(named) or not all(isinstance(leaf, tf.Tensor) for leaf in leaves):
        return []
    return [(name, f"{leaves[i].dtype.name} {tuple(leaves[i].shape)}") for name, i in named]
