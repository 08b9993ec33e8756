"""Private state of Keras' own callbacks, and of loggers of other packages."""

from collections.abc import Callable
from operator import attrgetter, methodcaller
from typing import Any

from . import private_method

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
    """Return whether a hook of a callback is Keras' own, which does nothing."""
    return getattr(method, "_is_default", False)


def no_hook(*args: Any, **kwargs: Any) -> None:
    """Do nothing, as a hook that counts as Keras' own."""


no_hook._is_default = True


# ModelCheckpoint

batches_since_saving = attrgetter("_batches_seen_since_last_saving")
"""The number of batches since a `ModelCheckpoint` last saved."""
choose_monitor_op = methodcaller("_set_monitor_op")
"""Lets a `ModelCheckpoint` choose the direction (`min` or `max`) of its monitored value."""


path_to_save = private_method("_get_file_path")
"""`path_to_save(checkpoint, epoch, batch, logs)`: the file of a `ModelCheckpoint`, its placeholders filled in."""
should_save = private_method("_should_save_model")
"""`should_save(checkpoint, epoch, batch, logs, path)`: whether it saves this model, given its monitored value."""

# TensorBoard

train_writer = attrgetter("_train_writer")
"""The summary writer of training; opened when it is first asked for."""
validation_writer = attrgetter("_val_writer")
"""The summary writer of validation; opened when it is first asked for."""
close_writers = methodcaller("_close_writers")
"""Closes both writers."""


def begin_new_files(callback: Any) -> None:
    """Close both writers; what is written next begins other files."""
    if hasattr(callback, "_writers"):  # else it has not begun
        close_writers(callback)
        callback._writers = {}


def find_profiled_steps(callback: Any) -> tuple[int, int] | None:
    """Return the first and the last step of the profile; None without one."""
    return (callback._start_batch, callback._stop_batch) if callback._should_trace else None


is_profiling = attrgetter("_is_tracing")
"""Whether a profile has begun and not ended."""
start_profile = methodcaller("_start_trace")
"""Begins the profile."""
stop_profile = methodcaller("_stop_trace")
"""Ends the profile and writes it."""


def profile_nothing(callback: Any) -> None:
    """Make a TensorBoard capture no profile."""
    callback._should_trace = False
