"""When a callback wants to be called: so that many steps can run in one execution and nobody misses anything."""

from __future__ import annotations

from typing import Any

import keras

# In a validation these look at whatever has been done when an execution ends; so do backups, which run last.
_WAIT_FOR_EXECUTIONS = (keras.callbacks.ProgbarLogger, keras.callbacks.TensorBoard)
_BATCH_HOOKS = {
    "train": ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end"),
    "test": ("on_test_batch_begin", "on_test_batch_end"),
    "predict": ("on_predict_batch_begin", "on_predict_batch_end"),
}


def steps_to_wake(callback: Any, step: int, phase: str = "train") -> int | None:
    """The number of steps after which the per-batch hooks of `callback` must be called.

    A callback of ours answers with its own `steps_to_wake(step)`. One that overrides a per-batch hook without such a
    method is called on every batch; one that overrides none need not be woken before the end of the epoch.

    Args:
        callback: `keras.callbacks.Callback`.
        step: int; the steps of this epoch that are done.
        phase: "train", "test" or "predict".

    Returns:
        int of at least 1, or None: not in this epoch.
    """
    if phase == "train":
        own = getattr(callback, "steps_to_wake", None)
        if own is not None:
            return own(step)
        known = _KERAS_CALLBACKS.get(type(callback))
        if known is not None:
            return known(callback, step)
    elif type(callback) in _WAIT_FOR_EXECUTIONS or any(
        getattr(callback, name, False) for name in ("runs_last", "waits_for_executions")
    ):
        return None
    if any(_overrides(callback, hook) for hook in _BATCH_HOOKS[phase]):
        return 1
    return None


def _overrides(callback: Any, hook: str) -> bool:
    method = getattr(callback, hook)
    if hook in vars(callback):
        return True
    return getattr(type(callback), hook) is not getattr(keras.callbacks.Callback, hook) and not getattr(
        method, "_is_default", False
    )


def _model_checkpoint(callback: Any, step: int) -> int | None:
    if callback.save_freq == "epoch":
        return None
    return max(1, callback.save_freq - callback._batches_seen_since_last_saving)


def _tensor_board(callback: Any, step: int) -> int | None:
    if callback.update_freq == "epoch" and not callback._should_trace and not callback.write_steps_per_second:
        return None
    return 1


def _lambda_callback(callback: Any, step: int) -> int | None:
    return 1 if any(hook in vars(callback) for hook in _BATCH_HOOKS["train"]) else None


_KERAS_CALLBACKS = {
    keras.callbacks.History: lambda callback, step: None,
    keras.callbacks.ProgbarLogger: lambda callback, step: None,
    keras.callbacks.TerminateOnNaN: lambda callback, step: 1,
    keras.callbacks.ModelCheckpoint: _model_checkpoint,
    keras.callbacks.TensorBoard: _tensor_board,
    keras.callbacks.LambdaCallback: _lambda_callback,
}
