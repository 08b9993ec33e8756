"""Private state of Keras' own callbacks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

# Attributes in which Keras' own callbacks keep their state during training.
CALLBACK_ATTRIBUTES = {
    "EarlyStopping": ("wait", "stopped_epoch", "best", "best_epoch", "best_weights"),
    "ReduceLROnPlateau": ("best", "wait", "cooldown_counter"),
    "ModelCheckpoint": ("best", "_batches_seen_since_last_saving", "_last_batch_seen"),
    "OrbaxCheckpoint": ("best", "_batches_seen_since_last_saving", "_last_batch_seen", "_total_batches_seen"),
    "TensorBoard": ("_global_train_batch", "_global_test_batch"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "History": ("history", "epoch"),
    "ProgbarLogger": ("seen",),
}


def is_default_hook(method: Callable[..., Any]) -> bool:
    """Whether a hook of a callback is Keras' own, which does nothing."""
    return getattr(method, "_is_default", False)


# ModelCheckpoint


def batches_since_saving(callback: Any) -> int:
    """The number of batches since a `ModelCheckpoint` last saved."""
    return callback._batches_seen_since_last_saving


def choose_monitor_op(callback: Any) -> None:
    """Lets a `ModelCheckpoint` choose the direction (`min` or `max`) of its monitored value."""
    callback._set_monitor_op()


def path_to_save(callback: Any, epoch: int, batch: int | None, logs: dict | None) -> str:
    """The file of a `ModelCheckpoint` for this save, its placeholders filled in."""
    return callback._get_file_path(epoch, batch, logs)


def should_save(callback: Any, epoch: int, batch: int | None, logs: dict | None, path: Any) -> bool:
    """Whether a `ModelCheckpoint` saves this model, given its monitored value."""
    return callback._should_save_model(epoch, batch, logs, path)


# TensorBoard


def train_writer(callback: Any) -> Any:
    """The summary writer of training; opened when it is first asked for."""
    return callback._train_writer


def validation_writer(callback: Any) -> Any:
    """The summary writer of validation; opened when it is first asked for."""
    return callback._val_writer


def close_writers(callback: Any) -> None:
    """Closes both writers."""
    callback._close_writers()


def profiled_steps(callback: Any) -> tuple[int, int] | None:
    """The first and the last step of the profile; None without one."""
    return (callback._start_batch, callback._stop_batch) if callback._should_trace else None


def is_profiling(callback: Any) -> bool:
    """Whether a profile has begun and not ended."""
    return callback._is_tracing


def start_profile(callback: Any) -> None:
    """Begins the profile."""
    callback._start_trace()


def stop_profile(callback: Any) -> None:
    """Ends the profile and writes it."""
    callback._stop_trace()


def end_profiles_by(callback: Any, around: Callable[..., Any]) -> None:
    """Calls `around(original, callback, save)` where this TensorBoard ends a profile by `original(save)`."""
    original = functools.partial(type(callback)._stop_profiler, callback)
    vars(callback)["_stop_profiler"] = functools.partial(around, original, callback)


def profiler_has_begun(callback: Any) -> bool:
    """Whether TensorFlow's profiler was begun by the callback."""
    return callback._profiler_started


def profiler_has_ended(callback: Any) -> None:
    """Records that the profile was ended elsewhere."""
    callback._profiler_started = False
