"""Writes TensorFlow's profile in a fork of the process, so that a crash of TensorFlow does not end the training run."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import platform
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.profiler import profiler_v2

_LEVEL = "_ZN3tsl8profiler8internal13g_trace_levelE"
_NOT_RECORDING = -1
_FORKS = 2  # attempts to write a profile
_POLL = 0.01
_RETURN = b"\xc3"  # the return instruction of x86-64


def can_be_written_in_fork() -> bool:
    """Whether only the host is profiled: a GPU or TPU can be profiled only in its own process."""
    on_host = all(device.device_type == "CPU" for device in tf.config.list_physical_devices())
    return on_host and bool(_levels())


def write_in_fork(seconds: float, most: float, state: Callable[[int], tuple[bool, float]]) -> str | None:
    """Writes the current profile and ends it. It takes 0.05 s for 10,000 events, plus the copy of the page tables.

    TensorFlow matches the beginning and the end of an operation that two threads share, such as an all-reduce, through
    pointers to events that it has copied and freed (`TraceMeRecorder::Consume` in 2.20 and 2.21,
    tensorflow/tensorboard#3149). The process is then killed, hangs, or continues with overwritten memory. In this
    process the events are dropped unread.

    `seconds` limits the CPU time, without waiting for a processor, and `most` the wall-clock time. A fork inherits the state
    of other threads, such as a lock that is held: one that fails, or has taken half of the time, is followed by another.
    `state` says whether a process runs or waits for a processor now, and its CPU seconds.

    Returns None, or the reason why nothing was written.
    """
    session, reason = profiler_v2._profiler, None
    for _ in range(_FORKS):
        reason = _written_in_fork(session, lambda fork: _ended(fork, seconds / _FORKS, most / _FORKS, state))
        if reason is None:
            break
    del session  # otherwise it would not end below
    discard()
    return reason


def _written_in_fork(session: Any, ended: Callable[[int], str | None]) -> str | None:
    keep_what_is_freed = _keeper()
    with warnings.catch_warnings():
        # Python warns of forks with threads: this one takes no lock of Python and runs no user code.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            fork = os.fork()
        except OSError as error:  # memory that the system cannot overcommit, or a limit on processes
            return f"no process could be started to write it ({error.strerror})"
    if not fork:
        _write_and_exit(session, keep_what_is_freed)
    return ended(fork)


def discard() -> None:
    """Ends the current profile without writing it."""
    _stop_unread()
    if _levels():
        tf.profiler.experimental.start("")  # the beginning of a profile frees the events that are left
        _stop_unread()


def _stop_unread() -> None:
    for level in _levels():
        level.value = _NOT_RECORDING
    tf.profiler.experimental.stop(save=False)


def _write_and_exit(session: Any, keep_what_is_freed: Callable[[], object]) -> None:
    """Does not return: exit handlers and error handlers of this process must not run twice."""
    status = 1
    try:
        faulthandler.disable()  # the parent reports the error in one sentence
        keep_what_is_freed()
        session.export_to_tb()
        status = 0
    finally:
        os._exit(status)


def _keeper() -> Callable[[], object]:
    """Makes `free` return at once: safe in a process that is about to end, and done where the instructions are known.

    Elsewhere, or where the system forbids it, the pointers above may point to reused memory, and the fork may crash.
    """
    if platform.machine() != "x86_64":
        return lambda: None
    library = ctypes.CDLL(None)
    free = ctypes.cast(library.free, ctypes.c_void_p).value or 0
    page = ctypes.c_void_p(free // mmap.PAGESIZE * mmap.PAGESIZE)
    everything = 7  # read, write and execute
    change = library.mprotect
    return lambda: change(page, mmap.PAGESIZE, everything) or ctypes.memmove(free, _RETURN, 1)


def _ended(fork: int, seconds: float, most: float, state: Callable[[int], tuple[bool, float]]) -> str | None:
    """Waits for the fork, at most this long and one second after killing it; None if it wrote the profile, or why not."""
    status = _status(fork, seconds, most, state)
    if status is None:
        os.kill(fork, signal.SIGKILL)
        _status(fork, 1.0, 1.0, state)  # on a hanging disk it ends later
        return f"TensorFlow did not write it within {_FORKS * seconds:g} s"
    if status < 0:
        return f"TensorFlow failed with {signal.Signals(-status).name} while it wrote it"
    return "TensorFlow could not write it" if status else None


def _status(fork: int, seconds: float, most: float, state: Callable[[int], tuple[bool, float]]) -> int | None:
    """The exit status of a child, negative for a signal; None on a timeout."""
    until, asleep, computed = time.monotonic() + most, 0.0, 0.0
    while asleep + computed < seconds and time.monotonic() < until:
        try:
            ended, status = os.waitpid(fork, os.WNOHANG)
        except ChildProcessError:  # the program ignores SIGCHLD, or waits for all its children itself
            return 0
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(_POLL)
        runs, computed = state(fork)
        asleep += 0.0 if runs else _POLL
    return None


def _levels() -> list[ctypes.c_int]:
    """The address that TensorFlow's recorder checks before it records or reads events; empty where it is unknown."""
    for file in Path(tf.sysconfig.get_lib()).glob("libtensorflow_framework.*"):
        try:
            return [ctypes.c_int.in_dll(ctypes.CDLL(str(file)), _LEVEL)]
        except (OSError, ValueError):
            continue
    return []
