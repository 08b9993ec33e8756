"""The calls of optimizers that accumulate, counted on the host too: a GPU need not be asked whether an update is due."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from ...compat.graphs import is_inside
from ...compat.optimizers import call_count
from ...compat.variables import plain_variable
from ...distribute.replicas import copies_of, local_copy
from ...distribute.step_context import current_step
from ..building import inner_optimizers
from .users_code import is_of_users

_HOST = "CPU:0"


class CallsOnHost:
    """Counts the calls since the last update while a loop runs whose steps call the optimizer once each.

    The device's count is read when the loop begins. A call that a loss scale skips counts as well: its update stays due at
    the k-th call. A call that anything else skips does not; see `only_counted_on_device`. Owns a variable for each count.

    Args:
        optimizer: of the model; None, or one with code of a user's own, which may call or not: nothing is counted.
        once: whether each step calls it once; if not, nothing is counted either.
    """

    def __init__(self, optimizer: Any, once: bool) -> None:
        each_one = [] if optimizer is None or not once else [optimizer, *inner_optimizers(optimizer)]
        known = not any(map(is_of_users, each_one))
        self._optimizers = [each for each in each_one if known and _steps(each)]
        self._graph: Any = None
        with tf.device(_HOST):
            self._counts = [plain_variable(tf.constant(0)) for _ in self._optimizers]

    def begin(self) -> None:
        """Reads the counts of the device. Context: cross-replica; the graph in which the loop stands."""
        self._graph = tf.compat.v1.get_default_graph()
        for optimizer, count in zip(self._optimizers, self._counts):
            with tf.device(_HOST):
                calls = tf.convert_to_tensor(copies_of(call_count(optimizer))[0]) % _steps(optimizer)
                count.assign(tf.cast(calls, tf.int32))

    def next(self) -> dict[int, tf.Tensor]:
        """`StepContext.calls` of the next step of the loop. Context: cross-replica; empty outside of the loop."""
        if not self._optimizers or not is_inside(tf.compat.v1.get_default_graph(), self._graph):
            return {}
        calls: dict[int, tf.Tensor] = {}
        for optimizer, count in zip(self._optimizers, self._counts):
            with tf.device(_HOST):
                calls[id(optimizer)] = before = count.read_value()
                count.assign((before + 1) % _steps(optimizer))
        return calls


def update_is_due(optimizer: Any) -> tf.Tensor:
    """Whether this call is the k-th since the last update; bool scalar, on the host where it is known there.

    Context: replica.
    """
    step = current_step()
    calls = None if step is None else step.calls.get(id(optimizer))
    if calls is None:
        return (local_copy(call_count(optimizer)) + 1) % _steps(optimizer) == 0
    with tf.device(_HOST):
        return tf.equal(calls + 1, _steps(optimizer))


def only_counted_on_device() -> None:
    """The call of this step may be skipped without being counted, and the host cannot know. Context: replica."""
    step = current_step()
    if step is not None:
        step.calls = {}


def _steps(optimizer: Any) -> Any:
    return getattr(optimizer, "gradient_accumulation_steps", None)
