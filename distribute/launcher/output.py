"""The output of the workers: prefixed, kept in log files, with the last lines remembered."""

import collections
import os
import re
import selectors
import sys
from pathlib import Path
from typing import IO, Any

_LAST_LINES = 400  # most are TensorFlow's
_LONGEST_LINE = 1 << 16
_LONGEST_REMEMBERED = 1000
_SEQUENCES = re.compile(  # ECMA-48
    r"""
    (?:\x1b\[|\x9b)[0-?]*[\ -/]*[@-~]                                               # control sequences
    | (?:\x1b[]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)  # strings up to their terminator
    | \x1b[\ -/]*[0-~]                                                              # escapes of two characters
    """,
    re.VERBOSE,
)
_BARE = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")

_NOTICE = re.compile(
    r"WARNING: All log messages before absl::InitializeLog|I0000 [\d:.]+\s+\d+ \S+\.cc:\d+\] "
)
"""What C++ prints before it reads `TF_CPP_MIN_LOG_LEVEL`: information, no warnings or errors."""


def is_hidden(line: str) -> bool:
    """Return whether a line of stderr is a notice that the level would have hidden if it had been read."""
    return os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "3" and _NOTICE.match(line) is not None


def plain(text: str) -> str:
    r"""Return a line without terminal commands: escape sequences, control characters, changes of text direction.

    Text before a carriage return is left out, as on a terminal.

    >>> plain("10%\r20% \x1b[1mdone\x1b[0m\x07")
    '20% done'
    """
    text = _SEQUENCES.sub("", text)
    if "\r" in text:
        text = next((part for part in reversed(text.split("\r")) if part.strip("\b ")), "")
    return _BARE.sub("", text)


class Output:
    """Reads the pipes of all processes of one attempt and writes their output, in whole lines, also to files in `log_dir`.

    It never blocks and has no thread: the launcher calls `pump` in its loop. The names of the tasks set the width of the
    prefix; a restart's number is part of the files' names.
    """

    def __init__(self, names: list[str], log_dir: Path | None, attempt: int) -> None:
        self._width = max(map(len, names))
        self._log_dir, self._attempt = log_dir, attempt
        self._selector = selectors.DefaultSelector()
        self._logs: dict[str, IO[bytes]] = {}
        self._last = {name: collections.deque[str](maxlen=_LAST_LINES) for name in names}

    def add(self, name: str, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        """Read the two pipes of `name` from now on, and close them when they end."""
        if self._log_dir is not None and name not in self._logs:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            restart = f".restart-{self._attempt}" if self._attempt else ""
            self._logs[name] = open(self._log_dir / f"{name}{restart}.log", "ab", buffering=0)  # noqa: SIM115
        for pipe, target in ((stdout, sys.stdout), (stderr, sys.stderr)):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, selectors.EVENT_READ, [name, target, b""])

    def pump(self, timeout: float) -> bool:
        """Write the output of the next `timeout` seconds; return whether there was any."""
        if not self._selector.get_map():
            return False
        events = self._selector.select(timeout)
        for key, _ in events:
            self._read(key.fileobj, key.data)
        return bool(events)

    def drain(self) -> None:
        """Write the present contents of the pipes; for ended processes, whose pipes other processes may still hold."""
        for _ in range(1000):
            if not self.pump(0):
                return

    def last_lines(self, name: str) -> list[str]:
        """Return the last lines that `name` printed, oldest first."""
        return list(self._last[name])

    def close(self) -> None:
        """Write incomplete lines too, and close everything."""
        for key in list(self._selector.get_map().values()):
            self._end(key.fileobj, key.data)
        self._selector.close()
        for log in self._logs.values():
            log.close()

    def _read(self, pipe: Any, state: list[Any]) -> None:
        try:
            data = os.read(pipe.fileno(), 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        name, target, rest = state
        if not data:
            self._end(pipe, state)
            return
        if name in self._logs:
            try:
                self._logs[name].write(data)
            except OSError as error:  # a full disk must not end training
                self._logs.pop(name).close()
                print(f"[launch] the log of {name} ends here: {error.strerror}", file=sys.stderr, flush=True)
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        state[2] = rest
        for line in lines:
            self._write(name, target, line)

    def _end(self, pipe: Any, state: list[Any]) -> None:
        self._selector.unregister(pipe)
        pipe.close()
        if state[2]:
            self._write(state[0], state[1], state[2])
            state[2] = b""

    def _write(self, name: str, target: Any, line: bytes) -> None:
        text = plain(line.decode("utf-8", "replace"))
        if target is sys.stderr and is_hidden(text):
            return
        if text.strip():
            self._last[name].append(text[:_LONGEST_REMEMBERED])
        prefix = f"[{name}]".ljust(self._width + 2)
        try:
            encoding = target.encoding or "utf-8"
            text = text.encode(encoding, "backslashreplace").decode(encoding)
            print(f"{prefix} {text}", file=target, flush=True)
        except (BrokenPipeError, ValueError):
            return  # the output is closed; the workers continue
