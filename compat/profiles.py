"""Writes TensorFlow's profile in a fork of the process, where a fault of TensorFlow ends no training.

TensorFlow joins the beginning and the end of what two threads did for one operation, such as a sum over workers, through
pointers to events that it has copied and freed meanwhile (`TraceMeRecorder::Consume` in 2.20 and 2.21, met by users since
2020: tensorflow/tensorboard#3149). Depending on the order of its threads, which stays the same for long, the process is then
killed, hangs, or goes on with memory that was overwritten. In a fork only the fork is lost, and there nothing that is freed
is used again. In this process the events are dropped unread.
"""

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
_FORKS = 2  # that may write a profile
_POLL = 0.01
_RETURN = b"\xc3"  # the instruction of an x86-64


def can_be_written_in_fork() -> bool:
    """Whether nothing but the host is profiled: what records a GPU or TPU works in its own process alone."""
    on_host = all(device.device_type == "CPU" for device in tf.config.list_physical_devices())
    return on_host and bool(_levels())


def write_in_fork(seconds: float, most: float, state: Callable[[int], tuple[bool, float]]) -> str | None:
    """Writes the profile that was begun, and ends it. It takes 0.05 s for 10,000 events, beside copying the page tables.

    Args:
        seconds: how long that may take; what a fork waits for a processor does not count. A fork has what another thread
            was in the middle of, a lock that it held, say: one that fails, or has taken half of the time, is followed by
            another.
        most: how long it may take by the clock.
        state: whether a process computes or waits for a processor now, and the seconds that it has computed.

    Returns:
        None, or why nothing was written.
    """
    session, reason = profiler_v2._profiler, None
    for _ in range(_FORKS):
        reason = _written_in_fork(session, lambda fork: _ended(fork, seconds / _FORKS, most / _FORKS, state))
        if reason is None:
            break
    del session  # else it would not end below
    discard()
    return reason


def _written_in_fork(session: Any, ended: Callable[[int], str | None]) -> str | None:
    keep_what_is_freed = _keeper()
    with warnings.catch_warnings():
        # Python warns of forks beside threads: this one takes no lock of Python's, and runs no code of the user's.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            fork = os.fork()
        except OSError as error:  # memory that the system may not promise twice, or a limit on processes
            return f"no process could be made to write it ({error.strerror})"
    if not fork:
        _write_and_exit(session, keep_what_is_freed)
    return ended(fork)


def discard() -> None:
    """Ends the profile that was begun and writes nothing."""
    _stop_unread()
    if _levels():
        tf.profiler.experimental.start("")  # the beginning of a profile frees the events that are left
        _stop_unread()


def _stop_unread() -> None:
    for level in _levels():
        level.value = _NOT_RECORDING
    tf.profiler.experimental.stop(save=False)


def _write_and_exit(session: Any, keep_what_is_freed: Callable[[], object]) -> None:
    """Does not return: nothing of what this process does at its end, or after an error, may happen twice."""
    status = 1
    try:
        faulthandler.disable()  # what became of it is said in one sentence
        keep_what_is_freed()
        session.export_to_tb()
        status = 0
    finally:
        os._exit(status)


def _keeper() -> Callable[[], object]:
    """What makes `free` return at once: fit for a process that is about to end, and done where we know its instructions.

    Elsewhere, or where the system forbids it, the pointers above may lead to what is in use again, and the fork may be lost.
    """
    if platform.machine() != "x86_64":
        return lambda: None
    library = ctypes.CDLL(None)
    free = ctypes.cast(library.free, ctypes.c_void_p).value or 0
    page = ctypes.c_void_p(free // mmap.PAGESIZE * mmap.PAGESIZE)
    everything = 7  # to be read, written and run
    change = library.mprotect
    return lambda: change(page, mmap.PAGESIZE, everything) or ctypes.memmove(free, _RETURN, 1)


def _ended(fork: int, seconds: float, most: float, state: Callable[[int], tuple[bool, float]]) -> str | None:
    """Waits for the fork, at most so long and a second after it was killed; None if it wrote the profile, or why not."""
    status = _status(fork, seconds, most, state)
    if status is None:
        os.kill(fork, signal.SIGKILL)
        _status(fork, 1.0, 1.0, state)  # on a disk that hangs it ends later
        return f"TensorFlow did not write it within {_FORKS * seconds:g} s"
    if status < 0:
        return f"TensorFlow failed with {signal.Signals(-status).name} while it wrote it"
    return "TensorFlow could not write it" if status else None


def _status(fork: int, seconds: float, most: float, state: Callable[[int], tuple[bool, float]]) -> int | None:
    """How a child ended, a signal as a negative number; None: it has not after so long."""
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
    """What TensorFlow's recorder looks at before it notes an event or reads what it has; empty where it cannot be found."""
    for file in Path(tf.sysconfig.get_lib()).glob("libtensorflow_framework.*"):
        try:
            return [ctypes.c_int.in_dll(ctypes.CDLL(str(file)), _LEVEL)]
        except (OSError, ValueError):
            continue
    return []
