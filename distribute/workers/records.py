"""The record of a process of a cluster: that it is alive, its position, and the error that ended its program.

One JSON file for each process, `HOST-PID.json`, in the folder of UNISONO_RECORDS, which `launch` reads. Needs no TensorFlow.
"""

import atexit
import contextlib
import dataclasses
import inspect
import json
import os
import socket
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterable, Iterator
from math import isfinite
from pathlib import Path
from typing import Any

from .cluster import find_hosts
from .error_text import Blame, blame_in, essence, is_own_file
from .ticker import Ticker

_PAUSE = 1.0
_MOST_BYTES, _MOST_TEXT = 1 << 16, 2000
_MOST_NAMED, _MOST_NAME = 32, 60
_MOST_CAUSES = 20


@dataclasses.dataclass(frozen=True)
class ErrorRecord:
    """An error that ended a process's program."""

    kind: str  # name of its class
    text: str  # its message; a long one without its middle
    place: str  # the innermost line of the user's code, "" where there is none
    time: float  # `time.time()`
    blame: Blame | None = None  # where it is a consequence: it reports others that were lost or failed


@dataclasses.dataclass
class Record:
    """The last record of a process. Times are those of `time.time()`."""

    task: str  # "worker 1", "ps 0", ...; "" without a cluster
    pid: int
    alive: float  # when it was written; a live process writes one every second
    position: str = ""  # in training, for instance "epoch 2, step 17"; "" before the first `fit`
    collectives: int = 0  # the number of monitored collectives that it has reached
    since: float = 0.0  # when it last reached or left one of them
    place: str = ""  # the line of user code in which its main thread is; "" where that is not known
    error: ErrorRecord | None = None  # that ended its program


_ANY = Record("", 0, 0.0, error=ErrorRecord("", "", "", 0.0, Blame()))


def short(text: str, most: int = _MOST_TEXT) -> str:
    """Return `text`, without its middle if it is longer than `most` characters.

    >>> short("0123456789", 7)
    '012 ... 789'
    """
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-(most // 2) :]}"


def path_of(folder: Path, pid: int) -> Path:
    """Return the path of the record of a process of this machine."""
    return folder / f"{socket.gethostname()}-{pid}.json"


def write(folder: Path, record: Record) -> None:
    """Replace the record of this process; raise an OSError if the file system does not allow it."""
    path = path_of(folder, record.pid)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(_cut_to_limits(dataclasses.asdict(record))), "utf-8")
    os.replace(part, path)


def _cut_to_limits(value: Any) -> Any:
    """Return a value of a record with texts and lists cut to the reader's limits."""
    if isinstance(value, dict):
        return {name: _cut_to_limits(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [short(each, _MOST_NAME) for each in value[:_MOST_NAMED]]
    return short(value) if isinstance(value, str) else value


def read(folder: Path, pid: int) -> Record | None:
    """Return the record of a process of this machine; None where there is no valid one, whatever the file contains."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        from ..objects import open_plain  # imports NumPy, which `--help` need not wait for

        with open_plain(path_of(folder, pid)) as file:
            data = file.read(_MOST_BYTES + 1)
        return _like(_ANY, json.loads(data)) if len(data) <= _MOST_BYTES else None
    return None


def _like(example: Any, given: Any) -> Any:
    """Return a dataclass from a JSON object whose fields have the types of the example; raise if they have not."""
    found = {}
    for name, like in vars(example).items():
        value: Any = given[name]
        if isinstance(value, dict):
            value = _like(like, value)
        elif isinstance(value, list) and all(isinstance(each, str) for each in value):
            value = tuple(value)
        wrong = type(value) is not type(like) and not (name in ("error", "blame") and value is None)
        if wrong or (isinstance(value, float) and not isfinite(value)):
            raise TypeError(name)
        found[name] = value
    return type(example)(**found)


class Recorder:
    """Owns this process's record and the thread that updates it once a second. Without a folder it does nothing."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._record = Record("", 0, 0.0, since=time.time())
        self._lock = threading.Lock()
        self._position: Callable[[], str] = str
        self._ticker = Ticker("record", self.update, _PAUSE)

    def start(self, folder: str | None, task: str) -> None:
        """Keep the record of a task ("worker 1", "ps 0") in the folder of UNISONO_RECORDS; without a folder, none."""
        self._record.task = task or self._record.task  # known at the second call where the workers meet first
        if not folder or self._folder is not None:
            return
        from ..storage import local_path  # imports NumPy, which `--help` need not wait for

        path: Path = local_path("UNISONO_RECORDS", folder)
        self._folder = path
        with contextlib.suppress(OSError):
            path.mkdir(parents=True, exist_ok=True)
        self.update()
        self._ticker.start()
        at_fatal_error(self._record_failure)
        atexit.register(self._end)

    def at_collective(self, count: int) -> None:
        """Record that this process has reached its monitored collective `count`, or has left it."""
        self._record.collectives, self._record.since = count, time.time()

    @contextlib.contextmanager
    def report_position(self, position: Callable[[], str]) -> Iterator[None]:
        """Report `position()` as the position in training until the block is left; its last value stays."""
        self._position = position
        try:
            yield
        finally:
            last = position()
            self._position = lambda: last

    def update(self) -> bool:
        """Write the current record; return True, so that the ticker continues."""
        if self._folder is None:
            return True
        record = self._record
        with self._lock, contextlib.suppress(OSError):  # a full disk must not end training
            record.pid, record.alive = os.getpid(), time.time()
            frame = sys._current_frames().get(threading.main_thread().ident or 0)
            record.position, record.place = (
                self._position(),
                _innermost(traceback.walk_stack(frame)) if frame else "",
            )
            write(self._folder, record)
        return True

    def _record_failure(self, error: BaseException) -> None:
        if self._record.error is None:
            self._record.error = error_record(error)
        self.update()

    def _end(self) -> None:
        self._ticker.stop(_PAUSE)
        error = getattr(sys, "last_value", None)  # where other code has replaced our hook
        if isinstance(error, Exception):
            self._record_failure(error)
        else:
            self.update()


_recorder = Recorder()
start = _recorder.start
at_collective = _recorder.at_collective
report_position = _recorder.report_position


def error_record(error: BaseException) -> ErrorRecord:
    """Return the record of an error. It is a consequence if it, or its cause, reports a lost peer."""
    texts: list[str] = []
    cause, seen = error, set()
    while cause is not None and id(cause) not in seen and len(seen) < _MOST_CAUSES:
        seen.add(id(cause))
        try:
            texts.append(str(cause))
        except Exception:  # `__str__` of a custom class may fail
            texts.append("")
        cause = cause.__cause__ or cause.__context__
    found = [each for each in map(blame_in, texts) if each is not None]
    blame = next((each for each in found if each.lost), found[0] if found else None)
    text, hosts = short(essence(texts[0])), find_hosts(blame)
    return ErrorRecord(
        type(error).__qualname__,
        text if hosts in text else f"{text} ({hosts})",
        _innermost(reversed(list(traceback.walk_tb(error.__traceback__)))),
        time.time(),
        blame,
    )


def at_fatal_error(act: Callable[[BaseException], None]) -> None:
    """Call `act` with the error that ends the program, after it was printed."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        try:
            previous(kind, error, trace)
        finally:
            if _ends_program(error):
                with contextlib.suppress(Exception):
                    act(error)

    sys.excepthook = hook


def exit_for_another_attempt(error: BaseException) -> None:
    """Exit with status 75, "try again", if the error says that another worker was lost, and not what failed there."""
    blame = error_record(error).blame
    if blame is not None and (blame.lost or not blame.reported_by):
        raise SystemExit(os.EX_TEMPFAIL)


def _ends_program(error: BaseException) -> bool:
    """Return whether `sys.excepthook` is called because this error ends the program, not by code that continues."""
    raised = {frame for frame, _ in traceback.walk_tb(error.__traceback__)}
    called_by = {frame for frame, _ in traceback.walk_stack(inspect.currentframe())}
    return raised.isdisjoint(called_by) and threading.current_thread() is threading.main_thread()


def _innermost(frames: Iterable[tuple[types.FrameType, int]]) -> str:
    """Return the first of `frames` (innermost first) in one of the user's files."""
    for frame, line in frames:
        if is_own_file(frame.f_code.co_filename):
            return f"{frame.f_code.co_name} ({frame.f_code.co_filename}:{line})"
    return ""


def show_own_frames(error: BaseException) -> BaseException:
    """Return an error whose traceback has the user's frames alone, as Keras' has them for other errors."""
    trace = None
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if is_own_file(frame.f_code.co_filename):
            trace = types.TracebackType(trace, frame, frame.f_lasti, line)
    return error.with_traceback(trace)
