"""The end of a profile, which must not be the end of training."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from ..compat.callbacks import profiler_has_begun, profiler_has_ended
from ..compat.profiles import can_be_written_in_fork, write_in_fork
from ..compat.replaced import wrap
from ..distribute.environment import peer_timeout
from ..distribute.launcher.guard import stat_of
from ..distribute.workers.cluster import num_workers
from ..distribute.workers.ticker import ended_in_time


def end_profile() -> str | None:
    """Writes the profile that `tf.profiler.experimental.start` began, and ends it.

    Returns:
        None, or why there is no profile. It takes less time than that after which other workers take this one for lost.
    """
    most = peer_timeout() / 2 if num_workers() > 1 else math.inf
    seconds = min(20.0, most)
    if can_be_written_in_fork():
        return write_in_fork(seconds, most, _state)
    if ended_in_time("profiler-stop", tf.profiler.experimental.stop, seconds):
        return None
    return f"TensorFlow did not write it within {seconds:g} s"


def _state(pid: int) -> tuple[bool, float]:
    """Whether a process computes or waits for a processor now, and the seconds that it has computed."""
    fields = stat_of(pid)
    if fields is None:  # the system does not say
        return False, 0.0
    return fields[0] == "R", (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _end_of_tensorboard(original: Callable[..., Any], callback: Any, save: bool = True) -> Any:
    """The end of a profile of `TensorBoard(profile_batch=...)`, of Keras' own and of ours, for a model of ours."""
    ours = hasattr(getattr(callback, "model", None), "fit_state")
    if not (ours and save and profiler_has_begun(callback)):
        return original(callback, save)
    profiler_has_ended(callback)
    if reason := end_profile():
        warnings.warn(
            f"The profile of TensorBoard(profile_batch=...) is missing: {reason}. Training goes on."
        )


wrap("_stop_profiler", _end_of_tensorboard)
