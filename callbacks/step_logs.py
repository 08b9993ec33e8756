"""The logs of many steps at once, for callbacks that only read logs: no execution ends for their sake.

A callback takes them as vectors, with a hook `on_train_steps_end(first, logs)`, or declares on its class that its per-batch
hooks only read (`only_reads_logs = True`); then these are called for every step, in order, when an execution has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .fit_state import FitState


def takes_step_logs(callback: Any) -> bool:
    """Whether a callback has the hook `on_train_steps_end(first, logs)`.

    The loop calls it at the end of each execution, before the `on_train_batch_end` of its last step.

    Args of the hook:
        first: int; the first step of the execution, counted from 0 in its epoch.
        logs: dict from the name of a log to an array `[steps]`, float64: its value after each step, as `on_train_batch_end`
            would have been told. Logs that are no scalars are `[steps, ...]`.
    """
    return hasattr(callback, "on_train_steps_end")


def only_reads_logs(callback: Any) -> bool:
    """Whether the class of a callback declares that its per-batch hooks only read logs.

    Callbacks that Keras calls in threads (`async_safe`) are not among them: their calls have no order.
    """
    return bool(getattr(type(callback), "only_reads_logs", False)) and not getattr(
        callback, "async_safe", False
    )


def ends_at_bad_loss(callback: Any) -> bool:
    """Whether all that a callback does in a step is to end the training where the loss is NaN or infinite."""
    return type(callback) is keras.callbacks.TerminateOnNaN


def logs_of_one_step(logs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The logs of a single step as vectors of one value."""
    return {name: np.asarray(value)[None] for name, value in logs.items()}


def tell_steps(
    callbacks: Sequence[Any],
    state: FitState,
    first: int,
    logs: Mapping[str, np.ndarray],
    *,
    replayed: bool,
    all_done: bool = False,
) -> None:
    """Tells callbacks what the logs were after each step of an execution.

    Args:
        callbacks: in their order; those that only read logs, and those that take vectors, are called.
        state: of the fit; its step and its logs are those of the call while a hook is called.
        first: int; the first step of the execution in its epoch, of which `on_train_batch_begin` has been called.
        logs: name -> array `[steps, ...]`.
        replayed: whether per-batch hooks are called for each step.
        all_done: whether those of the last step are too; otherwise the loop calls `on_train_batch_end` of all callbacks.
    """
    steps = len(next(iter(logs.values()), ()))
    readers = [callback for callback in callbacks if only_reads_logs(callback)] if replayed else []
    columns = [_values(column) for column in logs.values()] if readers else []
    last = first + steps - 1
    for step, values in zip(range(first, first + steps), zip(*columns)):
        if step > first:
            for callback in readers:
                callback.on_train_batch_begin(step)
        state.step, state.step_logs = step + 1, dict(zip(logs, values))
        if step < last or all_done:
            for callback in readers:
                callback.on_train_batch_end(step, state.step_logs)
    state.step = first + steps
    for callback in callbacks:
        if takes_step_logs(callback):
            callback.on_train_steps_end(first, {name: column.copy() for name, column in logs.items()})


def _values(column: np.ndarray) -> list[Any]:
    """The value after each step, as a loop tells one: a float, or a tensor where it is no scalar."""
    return column.tolist() if column.ndim == 1 else [tf.constant(value) for value in column]
