"""When a callback must be called, so that many steps run in one execution and no callback misses anything."""

from __future__ import annotations

from typing import Any

import keras

from ..compat.callbacks import batches_since_saving, is_default_hook, profiled_steps
from .step_logs import ends_at_bad_loss, only_reads_logs, takes_step_logs

# These need only the state at the end of whatever execution runs; our own say so with `waits_for_executions`.
_WAIT_FOR_EXECUTIONS = (keras.callbacks.ProgbarLogger, keras.callbacks.TensorBoard)
_BATCH_HOOKS = {
    "train": ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end"),
    "test": ("on_test_batch_begin", "on_test_batch_end"),
    "predict": ("on_predict_batch_begin", "on_predict_batch_end"),
}


def steps_to_wake(callback: Any, step: int, phase: str = "train", told: bool = False) -> int | None:
    """The number of steps after which the per-batch hooks of `callback` must be called.

    In training a callback can answer with its own `steps_to_wake(step)`; in every phase one with the attribute
    `waits_for_executions` is called whenever an execution ends. Any other callback that overrides a per-batch hook is
    called at every batch, and one that overrides none is not needed before the end of the epoch: None.

    Args:
        callback: `keras.callbacks.Callback`.
        step: int; the steps of this epoch that are done.
        phase: "train", "test" or "predict".
        told: whether the loop tells callbacks the logs of every step of an execution when it has ended, and ends where the
            loss is not finite; then those that only read logs (see `step_logs`) need no execution to end.
    """
    if phase == "train":
        if hasattr(callback, "steps_to_wake"):
            return callback.steps_to_wake(step)
        if told and (only_reads_logs(callback) or ends_at_bad_loss(callback)):
            return None
        if not told and takes_step_logs(callback):
            return 1
        if type(callback) is keras.callbacks.ModelCheckpoint:
            return _model_checkpoint(callback)
        if type(callback) is keras.callbacks.TensorBoard:
            return _tensor_board(callback)
    elif getattr(callback, "runs_last", False):  # a backup in a validation is made where an execution ends
        return None
    if type(callback) in _WAIT_FOR_EXECUTIONS or getattr(callback, "waits_for_executions", False):
        return None
    return 1 if any(_overrides(callback, hook) for hook in _BATCH_HOOKS[phase]) else None


def _overrides(callback: Any, hook: str) -> bool:
    inherited = getattr(type(callback), hook) is getattr(keras.callbacks.Callback, hook)
    return hook in vars(callback) or not (inherited or is_default_hook(getattr(callback, hook)))


def _model_checkpoint(callback: Any) -> int | None:
    if callback.save_freq == "epoch":
        return None
    return max(1, callback.save_freq - batches_since_saving(callback))


def _tensor_board(callback: Any) -> int | None:
    silent = callback.update_freq == "epoch" and not callback.write_steps_per_second
    return None if silent and profiled_steps(callback) is None else 1
