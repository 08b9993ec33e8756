"""The owner of a folder of backups: one running training, known to every process that sees the folder."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

from ....distribute.environment import RUN
from ....distribute.objects import is_remote, names_in, remove_file
from ....distribute.workers.cluster import read_cluster
from ....distribute.workers.ticker import Ticker
from ...monitoring.formatting import moment
from ...process_identity import ProcessIdentity, this_process
from ...safe_file import SaveError, check_overwrite, open_plain, read_plain, temporary_path, write_safely

OWNER_FILE = "owner.json"
_CLAIM = re.compile(rb'"token"|\A\0*\Z')  # of zeros is what a power failure may leave of it
_MOST_BYTES = 4096
_held: dict[str, FolderOwner] = {}  # the owners in this process, by token
_writes = threading.Lock()


class FolderInUseError(SaveError):
    """Another training run uses the folder."""


class Owner(NamedTuple):
    """What an owner says of itself in the folder."""

    process: ProcessIdentity | None  # None where the file cannot be read
    host: str
    since: float  # seconds since 1970
    token: str  # of one use of the folder
    run: str = ""  # the job of a scheduler, which starts it again only once it has ended
    restarts: int = 0  # of that job

    def __str__(self) -> str:
        if self.process is None:
            return "an unknown process"
        here = self.process == this_process()
        who = "another fit of this process" if here else f"process {self.process.pid} on {self.host}"
        return f"{who} since {moment(self.since)}"


class FolderOwner:
    """Holds a folder from `acquire` to `release`, and sends a heartbeat meanwhile. Owns the file `owner.json` in it.

    An owner on the same machine is judged by its process: once it has ended, the folder is taken over. One on another
    machine, or in another container, is judged by its heartbeat, the time of the file, which it renews every `beat`
    seconds; after `patience` seconds without one it counts as dead. Clocks of two machines are never compared: a process
    that wants the folder watches whether the time (in a store: the object) changes. If a scheduler has restarted the
    same job, the first process has ended. Another training run of this process asks `runs` instead.
    """

    def __init__(
        self,
        directory: Any,
        beat: float = 10.0,
        patience: float = 60.0,
        runs: Callable[[], bool] = lambda: True,
    ) -> None:
        self._runs = runs
        self._directory, self._path = directory, directory / OWNER_FILE
        self._beat, self._patience = beat, patience
        self._token: str | None = None  # None: it does not hold the folder
        self._said: dict[str, Any] = {}  # the content of the file
        self._ticker: Ticker | None = None

    def acquire(self) -> None:
        """Take the folder, also from a dead owner; raise a SaveError if that fails, a FolderInUseError if a run uses it."""
        self.release()
        check_overwrite("`directory` of `BackupAndRestore`", self._path, _CLAIM)
        found = read_owner(self._directory)
        if found is not None and self._lives(found):
            raise self._in_use(found)
        mine = Owner(this_process(), socket.gethostname(), time.time(), uuid.uuid4().hex, *_job())
        _held[mine.token], self._token = self, mine.token
        try:
            self._write(mine, instead_of=found)
            self.check()
        except BaseException:
            self.release()
            raise
        self._ticker = Ticker("backup-owner", self._keep_alive, self._beat)
        self._ticker.start()

    def check(self) -> None:
        """Raise FolderInUseError if another run has taken the folder over. Do nothing before `acquire`."""
        if self._token is None:
            return
        found = read_owner(self._directory)
        if found is None and is_remote(self._directory):
            names_in(self._directory, contains=OWNER_FILE)  # else the bucket is gone: an error of the store
            found = read_owner(self._directory)
        elif found is None and not self._directory.is_dir():
            return  # the save itself says that the folder is gone
        if found is None or found.token != self._token:
            raise self._in_use(found, taken=True)

    def release(self) -> None:
        """Release the folder. Do nothing before `acquire`."""
        token, self._token = self._token, None
        if token is None:
            return
        if self._ticker is not None:
            self._ticker.stop(self._patience)  # it may be writing to a disk that hangs
            self._ticker = None
        _held.pop(token, None)
        with contextlib.suppress(OSError):
            found = read_owner(self._directory)
            if found is not None and found.token == token:
                remove_file(self._path)

    def _write(self, mine: Owner, instead_of: Owner | None) -> None:
        """Write the file; if there was none, write it only if there still is none."""
        self._said = dict(zip(Owner._fields, mine)) | {"process": str(mine.process)}
        try:
            with _writes:  # threads share the name of the incomplete file
                self._save(new=instead_of is None)
        except SaveError as error:
            if isinstance(error.__cause__, FileExistsError):
                raise self._in_use(read_owner(self._directory)) from None
            raise

    def _save(self, new: bool = False) -> None:
        write_safely(self._path, lambda stream: stream.write(json.dumps(self._said).encode()), new=new)

    def _lives(self, found: Owner) -> bool:
        """Return whether an owner lives; wait up to `patience` seconds for one elsewhere, unless its heartbeat is older."""
        runs = found.process and found.process.runs()
        if runs and found.process == this_process():
            holder = _held.get(found.token)
            if holder is not None and not holder._runs():  # an error has ended it without `release`
                holder.release()
                return False
            return holder is not None
        if runs is not None:
            return runs
        run, restarts = _job()
        if run and run == found.run and (restarts > found.restarts or not restarts):
            return False
        first = _sign_of(self._path)
        if first is None or self._age(first) > self._patience:
            return False
        print(
            f"{self._directory} was used by {found}; waiting up to {self._patience:g} s for its heartbeat.",
            flush=True,
        )
        until = time.monotonic() + self._patience
        while time.monotonic() < until:
            time.sleep(min(1.0, self._beat / 2))
            now = _sign_of(self._path)
            if now != first:
                return now is not None
        return False

    def _age(self, moment: Any) -> float:
        """Return seconds from `moment` to now, by the clock of the file system; 0 where that cannot be measured."""
        if is_remote(self._path):
            return 0.0
        probe = temporary_path(self._directory / "clock")
        seconds = 0.0
        with contextlib.suppress(OSError):
            probe.touch()
            seconds = (probe.stat().st_mtime_ns - moment) / 1e9
            probe.unlink()
        return seconds

    def _keep_alive(self) -> bool:
        with contextlib.suppress(OSError):
            found = read_owner(self._directory)
            if found is None or found.token != self._token:
                return True
            if is_remote(self._path):
                self._said["beats"] = self._said.get("beats", 0) + 1
                self._save()
            else:
                os.utime(self._path)
        return True

    def _in_use(self, found: Owner | None, taken: bool = False) -> FolderInUseError:
        who = "an unknown process" if found is None else str(found)
        return FolderInUseError(
            f"{self._directory} {'has been taken over' if taken else 'is in use'} by {who}: use another directory for this "
            f"run, or stop that process; if it no longer exists, remove {self._path} to take over."
        )


def read_owner(directory: Any) -> Owner | None:
    """Return the owner that is named in a folder, alive or dead; None without one."""
    try:
        saved: Any = json.loads(read_plain(directory / OWNER_FILE, _MOST_BYTES))
        process = ProcessIdentity.parse(saved["process"])
        host, since, token = saved["host"], saved["since"], saved["token"]
        time.localtime(since)
        if isinstance(host, str) and isinstance(token, str) and host.isprintable():
            run, restarts = str(saved.get("run", "")), int(saved.get("restarts", 0))
            return Owner(process, host[:255], float(since), token, run, restarts)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError:
        if is_remote(directory):
            raise
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        pass
    return Owner(None, "", 0.0, "")


def _job() -> tuple[str, int]:
    """Return the job that a scheduler never runs twice at once, and how often it was restarted; "" outside of one."""
    if job := os.environ.get("SLURM_JOB_ID"):
        restarts = os.environ.get("SLURM_RESTART_COUNT", "0")
        step = os.environ.get("SLURM_STEP_ID", "")
        return f"slurm {job} {step}", int(restarts) if restarts.isdecimal() else 0
    run, cluster = os.environ.get(RUN, "").partition("/")[0], read_cluster()  # `launch` adds the attempt
    apart = run and cluster is not None and cluster.task_type == "evaluator"  # runs next to the workers
    return f"{run} evaluator" if apart else run, 0


def _sign_of(path: Any) -> Any:
    """Return the file's modification time, or the bytes of an object in a store; None if it is gone."""
    try:
        if is_remote(path):
            return read_plain(path, _MOST_BYTES)
        with open_plain(path) as stream:  # NFS asks its server when a file is opened
            return os.fstat(stream.fileno()).st_mtime_ns
    except OSError:
        return None
