"""This process's own record: kept up to date by a thread, completed where its program ends. Needs no TensorFlow."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import os
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path

from ..storage import local_path
from .accusations import accusation_in
from .own_text import essence, is_own_file
from .record import ErrorRecord, Record, short, write
from .ticker import Ticker

_PAUSE = 1.0
_MOST_CAUSES = 20
_recorder: Recorder | None = None


class Recorder:
    """Owns this process's record and the thread that says once a second that it lives.

    Args:
        folder: where records are kept.
        task: "worker 1", "ps 0", ...
    """

    def __init__(self, folder: Path, task: str) -> None:
        self._folder, self._task = folder, task
        self._lock = threading.Lock()
        self._error: ErrorRecord | None = None
        self._meetings, self._waits, self._since = 0, False, time.time()
        self._position: Callable[[], str] = str
        self._main = threading.main_thread()
        self._ticker = Ticker("record", self._alive, lambda: _PAUSE)

    def start(self) -> None:
        """Writes the first record, starts the thread, and waits for the end of the program."""
        folder = self._folder
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        self._alive()
        self._ticker.start()
        previous = sys.excepthook

        def note(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
            if ends_program(error):
                self.failed(error)
            previous(kind, error, trace)

        sys.excepthook = note
        atexit.register(self._end)

    def at_meeting(self, count: int, waits: bool) -> None:
        """Notes that this process has come to its meeting point `count`, or has left it."""
        self._meetings, self._waits, self._since = count, waits, time.time()

    @contextlib.contextmanager
    def telling(self, position: Callable[[], str]) -> Iterator[None]:
        """Until the block is left `position()` says where training is, and its last word remains."""
        self._position = position
        try:
            yield
        finally:
            last = position()
            self._position = lambda: last

    def failed(self, error: BaseException) -> None:
        """Writes that this error ends the program."""
        if self._error is None:
            self._error = error_record(error)
        self._write()

    def _alive(self) -> bool:
        self._write()
        return True

    def _end(self) -> None:
        self._ticker.stop(_PAUSE)
        error = getattr(sys, "last_value", None)  # where someone has replaced our hook
        if self._error is None and isinstance(error, Exception):
            self._error = error_record(error)
        self._write(ended=self._error is None)

    def _write(self, ended: bool = False) -> None:
        with self._lock, contextlib.suppress(OSError):  # a full disk ends no training
            write(
                self._folder,
                Record(
                    task=self._task,
                    pid=os.getpid(),
                    alive=time.time(),
                    position=self._position(),
                    meetings=self._meetings,
                    waits=self._waits,
                    since=self._since,
                    place=self._place(),
                    error=self._error,
                    ended=ended,
                ),
            )

    def _place(self) -> str:
        frame = sys._current_frames().get(self._main.ident or 0)
        frames = []
        while frame is not None:
            frames.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        return _innermost(frames)


def start(folder: str | None, task: str) -> None:
    """Keeps a record of this process from now on, in the folder that UNISONO_RECORDS names; without one, none."""
    global _recorder
    if folder and _recorder is None:
        _recorder = Recorder(local_path("UNISONO_RECORDS", folder), task)
        _recorder.start()


def at_meeting(count: int, waits: bool) -> None:
    """`Recorder.at_meeting`; nothing where there is no record."""
    if _recorder is not None:
        _recorder.at_meeting(count, waits)


@contextlib.contextmanager
def telling(position: Callable[[], str]) -> Iterator[None]:
    """`Recorder.telling`; nothing where there is no record."""
    with contextlib.nullcontext() if _recorder is None else _recorder.telling(position):
        yield


def ends_program(error: BaseException) -> bool:
    """Whether `sys.excepthook` is called because this error ends the program, not by code that goes on afterwards."""
    raised = set()
    trace = error.__traceback__
    while trace is not None:
        raised.add(id(trace.tb_frame))
        trace = trace.tb_next
    frame = inspect.currentframe()
    while frame is not None and id(frame) not in raised:
        frame = frame.f_back
    return frame is None and threading.current_thread() is threading.main_thread()


def error_record(error: BaseException) -> ErrorRecord:
    """What a record says of an error. It is a consequence if it, or what it came from, says that a peer was lost."""
    texts, cause, seen = [], error, set()
    while cause is not None and id(cause) not in seen and len(seen) < _MOST_CAUSES:
        seen.add(id(cause))
        texts.append(_text_of(cause))
        cause = cause.__cause__ or cause.__context__
    found = [each for each in map(accusation_in, texts) if each is not None]
    said = next((each for each in found if each.lost), found[0] if found else None)
    frames, trace = [], error.__traceback__
    while trace is not None:
        frames.append((trace.tb_frame.f_code, trace.tb_lineno))
        trace = trace.tb_next
    return ErrorRecord(
        kind=type(error).__qualname__,
        text=short(essence(texts[0])),
        place=_innermost(frames[::-1]),
        time=time.time(),
        consequence=said is not None,
        lost=said.lost if said else (),
        told_by=said.told_by if said else (),
    )


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an error of the user's own class, whose text fails
        return ""


def _innermost(frames: list[tuple[types.CodeType, int]]) -> str:
    """The first of `frames` (innermost first) that is in a file of the user's own."""
    for code, line in frames:
        if is_own_file(code.co_filename):
            return f"{code.co_name} ({code.co_filename}:{line})"
    return ""
