"""Logs for programs: one JSON object per line; a resumed run continues where its backup was made."""

import json
import math
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from ...distribute.arguments import function, whole_number
from ...distribute.storage import storage_path
from ..backup.save_schedule import SaveSchedule
from ..custom_loop import CustomLoopSupport
from ..safe_file import begins_with_json, check_overwrite


class LineFile:
    """A file of JSON lines. Each line is flushed whole; a new run overwrites the file, a resumed one continues it."""

    def __init__(self, path: Any) -> None:
        self.path: Any = path
        self._keep = 0
        self._stream: Any = None

    def continue_at(self, size: int) -> bool:
        """Keep the first `size` bytes of the existing file; False, and no change, once a line has been written."""
        if self._stream is not None:
            return False
        self._keep = min(size, self.path.stat().st_size) if self.path.exists() else 0
        return True

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._keep if self._stream is None else self._stream.tell()

    def write(self, record: dict[str, Any]) -> dict[str, Any]:
        """Append one line; return what it reads as."""
        if self._stream is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.touch()
            self._stream = open(self.path, "r+b")  # noqa: SIM115 - closed by `close`
            self._stream.truncate(self._keep)
            self._stream.seek(self._keep)
        line = jsonable(record)
        self._stream.write(json.dumps(line, allow_nan=False).encode() + b"\n")
        self._stream.flush()
        return line

    def close(self) -> None:
        """Close the file; a further line would overwrite it."""
        if self._stream is not None:
            self._stream.close()
        self._stream, self._keep = None, 0


def jsonable(value: Any) -> Any:
    """Return `value` in JSON's types; numbers that are not finite become "nan", "inf" and "-inf", which `float` reads.

    >>> jsonable({"loss": np.float32(0.5), "bad": float("nan"), "shape": (2, None)})
    {'loss': 0.5, 'bad': 'nan', 'shape': [2, None]}
    """
    if isinstance(value, dict):
        return {str(key): jsonable(v) for key, v in value.items()}
    if isinstance(value, list | tuple | set):
        return [jsonable(v) for v in value]
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, np.generic | np.ndarray) or hasattr(value, "numpy"):
        return jsonable(np.asarray(value).tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)


class JSONLines(CustomLoopSupport):
    """Writes the logs as JSON lines: `{"epoch": 0, "step": 100, "time": ..., "loss": ...}`.

    With several workers the chief writes. When `BackupAndRestore` resumes, the lines after the backup are dropped.

    Args:
        path: the file; one that an earlier run wrote is overwritten, any other is rejected.
        every: "epoch", or an int, to write also after every that many steps of an epoch ("steps": true in the line).
        clock: () -> float; seconds since 1970.

    Examples:
        >>> history = model.fit(x, y, verbose=0, callbacks=[unisono.callbacks.JSONLines("log.jsonl")])
    """

    output_paths = {"path": False}

    def __init__(
        self, path: str | os.PathLike[str], every: int | str = "epoch", clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__()
        self._schedule = SaveSchedule.parse(whole_number("every", every, words=("epoch",)))
        self.path = storage_path("path", path)
        self._file = LineFile(self.path)
        self._clock = function("clock", clock)

    def steps_until_call(self, step: int) -> int | None:
        """Request a call after `every` steps."""
        return self._schedule.steps_until_call(step)

    def get_state(self) -> dict[str, int]:
        """Return where the file ends now, for backups."""
        return {"size": self._file.size}

    def set_state(self, state: dict[str, int]) -> None:
        """Continue the file there, on resume."""
        self._file.continue_at(state["size"])

    def on_train_begin(self, logs: Any = None) -> None:
        """Reject a file that this callback did not write."""
        self._watch_plain_fit()
        self._file.path = self.path
        if self._fit_state().chief:
            check_overwrite("`path` of `JSONLines`", self.path, begins_with_json("epoch", "step", "time"))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch, in a custom loop."""
        self._fit_state(epoch=epoch)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Write a line when one is due."""
        epoch = self._fit_state(batch=batch).epoch
        if self._schedule.due(batch + 1, batch):
            self._write({"epoch": epoch, "step": batch + 1, "steps": True}, logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Write the line of the epoch."""
        self._write({"epoch": epoch, "step": self._fit_state().step}, logs)

    def on_train_end(self, logs: Any = None) -> None:
        """Close the file."""
        self.on_fit_exit()

    def on_fit_exit(self) -> None:
        """Close the file, also after an error."""
        self._file.close()

    def _write(self, where: dict[str, Any], logs: Any) -> None:
        if self._fit_state().chief:
            self._file.write({**where, "time": self._clock(), **(logs or {})})
