"""When the loop calls the per-batch hooks of a callback, and with which logs."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..compat.keras_private.callbacks import batches_since_saving, find_profiled_steps, is_default_hook
from ..compat.keras_private.variables import raw_value
from .callback import hook, setting
from .monitoring.tensorboard import TensorBoard
from .monitors import is_metric_logger

_BATCH_HOOKS = {
    "train": ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end"),
    "test": ("on_test_batch_begin", "on_test_batch_end"),
    "predict": ("on_predict_batch_begin", "on_predict_batch_end"),
}


def steps_until_call(
    callback: Any, step: int, phase: str = "train", records_logs: bool = False
) -> int | None:
    """Return in how many steps the per-batch hooks of `callback` must be called; None: not before the end of the epoch.

    A compiled call of many steps ends where the hooks of a callback must be called, so that none misses anything. In
    training a callback can answer with its own `steps_until_call(step)`. In every phase a callback with the attribute
    `waits_for_compiled_calls` is called whenever a compiled call ends. Any other callback that overrides a per-batch hook is
    called at every batch, unless `records_logs`: then the loop records the logs of every step of a compiled call, and
    ends the call where the loss is not finite, so that none ends for callbacks that only read logs.
    """
    if phase == "train":
        schedule = hook(callback, "steps_until_call")
        only_reads = only_reads_logs(callback) and (schedule is None or type(callback) is TensorBoard)
        if records_logs and (only_reads or ends_at_bad_loss(callback)):
            return None
        if schedule is not None:
            return schedule(step)
        if not records_logs and takes_step_logs(callback):
            return 1
        if type(callback) is keras.callbacks.ModelCheckpoint:
            every: Any = callback.save_freq
            return None if every == "epoch" else max(1, every - batches_since_saving(callback))
        if type(callback) is keras.callbacks.TensorBoard:
            silent = callback.update_freq == "epoch" and not callback.write_steps_per_second
            return None if silent and find_profiled_steps(callback) is None else 1
    elif setting(callback, "runs_last"):  # a backup in a validation is made where a compiled call ends
        return None
    waits = (
        type(callback) in (keras.callbacks.ProgbarLogger, keras.callbacks.TensorBoard)
        or setting(callback, "waits_for_compiled_calls")
        or (
            phase == "test"
            and (_logs_no_batch(callback) or (records_logs and only_reads_logs(callback, phase)))
        )
    )
    if waits:
        return None
    return 1 if _batch_hooks(callback, phase) else None


def batch_hook_of(callback: Any) -> tuple[str, bool]:
    """Return the per-batch hook that a callback overrides, as "Class.hook" of its owner, and whether a user wrote it."""
    kind = type(callback)
    hook = next(reversed(_batch_hooks(callback)), "steps_until_call")
    is_set = hook in vars(callback)  # as `LambdaCallback` does
    owner = kind if is_set else next(each for each in kind.__mro__ if hook in vars(each))
    return f"{owner.__name__}.{hook}", is_set or not owner.__module__.startswith(("keras.", "unisono."))


def takes_step_logs(callback: Any) -> bool:
    """Return whether a callback has `on_train_steps_end`, which takes the logs of each compiled call."""
    return hook(callback, "on_train_steps_end") is not None


def only_reads_logs(callback: Any, phase: str = "train") -> bool:
    """Return whether the per-batch hooks of a phase only read logs; calls in threads (`async_safe`) have no order.

    For training a class declares it. Metric loggers of known packages, and a `TensorBoard` that measures no time, only read
    as well.
    """
    if phase != "train":
        return phase == "test" and reads_optimizer(callback, phase) and not _logs_no_batch(callback)
    if type(callback) in (keras.callbacks.TensorBoard, TensorBoard):
        measures = callback.write_steps_per_second or find_profiled_steps(callback) is not None
        return callback.update_freq != "epoch" and not measures
    declared = setting(type(callback), "only_reads_logs") or reads_optimizer(callback)
    return bool(declared) and not getattr(callback, "async_safe", False)


def _logs_no_batch(callback: Any) -> bool:
    """Return whether the settings of a logger leave out batches: its validation hook does nothing."""
    return vars(callback).get("_log_on_batch") is False and is_metric_logger(callback, ["on_test_batch_end"])


def reads_optimizer(callback: Any, phase: str = "train") -> bool:
    """Return whether the per-batch hooks are a metric logger's, which may also read the learning rate and `iterations`."""
    return is_metric_logger(callback, _batch_hooks(callback, phase))


def ends_at_bad_loss(callback: Any) -> bool:
    """Return whether all that a callback does in a step is to end the training run where the loss is NaN or infinite."""
    return type(callback) is keras.callbacks.TerminateOnNaN


class NumbersOfSteps(keras.StatelessScope):
    """A block in which variables have their values after step `row` of a compiled call: `columns[id(variable)]`."""

    def __init__(self, columns: Mapping[int, Sequence[Any]]) -> None:
        super().__init__(initialize_variables=False)
        self._columns, self._tensors, self.row = columns, dict[int, list[tf.Tensor]](), 0

    def get_current_value(self, variable: Any) -> tf.Tensor | None:
        """Return the value of a variable after the step; None stands for the current value."""
        if id(variable) not in self._columns:
            return None
        if id(variable) not in self._tensors:  # all at once: a tensor for each read costs more than the read
            column = tf.constant(self._columns[id(variable)], raw_value(variable).dtype)
            self._tensors[id(variable)] = tf.unstack(column)
        return self._tensors[id(variable)][self.row]

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Write at once, as outside the block."""
        raw_value(update[0]).assign(update[1])


def replay_steps(
    callbacks: Sequence[Any],
    state: Any,
    first: int,
    logs: Mapping[str, np.ndarray],
    numbers: Mapping[int, Sequence[Any]] | None = None,
    *,
    replayed: bool,
    all_done: bool = False,
    phase: str = "train",
) -> None:
    """Pass the logs after each step of a compiled call, arrays `(steps, ...)`, to callbacks that only read or take them.

    While a hook is called, `state` (a `FitState`, or a pass of evaluation) has the step and the logs of that step, and an
    optimizer that a metric logger reads has its `numbers`. The hook for the beginning of the `first` step has been called.
    `replayed`: per-batch hooks are called for each step, for the last one only if `all_done`; otherwise the loop calls that
    for its end of all callbacks.
    """
    steps = len(next(iter(logs.values()), ()))
    then, now = NumbersOfSteps(numbers or {}), contextlib.nullcontext()
    readers = [
        (
            callback,
            then if reads_optimizer(callback) else now,
            any("begin" in hook for hook in _batch_hooks(callback, phase)),
        )
        for callback in (callbacks if replayed else ())
        if only_reads_logs(callback, phase)
    ]
    # The value after each step, as a loop passes one: a float, or a tensor where it is not a scalar.
    columns = [
        column.tolist() if column.ndim == 1 else [tf.constant(value) for value in column]
        for column in (logs.values() if readers else ())
    ]
    last = first + steps - 1
    for step, values in zip(range(first, first + steps), zip(*columns)):
        for callback, values_of, begins in readers if step > first else ():
            if begins:
                with values_of:
                    getattr(callback, f"on_{phase}_batch_begin")(step)
        then.row = step - first
        state.step, state.step_logs = step + 1, dict(zip(logs, values))
        for callback, values_of, _ in readers if step < last or all_done else ():
            with values_of:
                getattr(callback, f"on_{phase}_batch_end")(step, state.step_logs)
    state.step = first + steps
    for callback in callbacks if phase == "train" else ():
        if take := hook(callback, "on_train_steps_end"):
            take(first, {name: column.copy() for name, column in logs.items()})


def _batch_hooks(callback: Any, phase: str = "train") -> list[str]:
    """Return the per-batch hooks of a phase that a callback overrides."""
    hooks = [(hook, vars(callback).get(hook, getattr(type(callback), hook))) for hook in _BATCH_HOOKS[phase]]
    base = keras.callbacks.Callback
    return [hook for hook, own in hooks if own is not getattr(base, hook) and not is_default_hook(own)]
