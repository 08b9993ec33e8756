"""A directory of backups: which there are, the newest good one, the next name, how many to keep."""

import collections
import contextlib
import dataclasses
import os
import re
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ....distribute.arguments import show
from ....distribute.objects import StoreError, is_remote, names_in, remove_file, size_of
from ....distribute.storage import storage_path
from ...safe_file import is_own, remove_leftovers, save_error, write_safely
from . import container, schema, shard_files

_NAME = re.compile(r"^backup-(?:fit([0-9]+)-)?([0-9]+)\.unisono$")
_MARK = re.compile(rb"\A" + re.escape(container.MAGIC))
# Fits of this process that are done, by directory.
_finished: collections.Counter[str] = collections.Counter()


@dataclasses.dataclass(frozen=True)
class BackupInfo:
    """What `latest_backup` and `list_backups` know about one backup without loading it. It can be used as a path.

    Attributes:
        path: the file.
        status: "good", "damaged", "newer" or "older" (written by a version whose backups this one does not read); every
            byte was checked.
        epoch: the epoch at which a run resumes, 0-based; None unless good, like the next three.
        step: steps of that epoch that are done.
        total_steps: optimizer steps since the beginning of training.
        time: seconds since 1970, when it was taken.
        size: bytes.
        run: identifies the run; the same for all of its backups, however often it was resumed.
        problem: what is wrong with a file that is not good.
    """

    path: Path
    status: str
    epoch: int | None = None
    step: int | None = None
    total_steps: int | None = None
    time: float | None = None
    size: int = 0
    run: str | None = None
    problem: str | None = None

    def __fspath__(self) -> str:
        return str(self.path)


def backup_directory(directory: str | os.PathLike | None, backup_dir: str | os.PathLike | None) -> Path:
    """Return the directory passed as `directory` or as `backup_dir`, its name in Keras; raise a ValueError without one."""
    if directory is None:
        directory = backup_dir
    elif backup_dir is not None:
        raise ValueError(
            "Pass either `directory` or `backup_dir`, its name in Keras. Received: "
            f"directory={show(directory)} and backup_dir={show(backup_dir)}"
        )
    if isinstance(directory, str | None) and not directory:
        raise ValueError(
            f"Empty `backup_dir` argument passed, `directory` is {directory!r}: pass the folder for the backups, such as "
            '`BackupAndRestore("backup")`.'
        )
    return storage_path("directory", directory)


def list_backups(directory: str | os.PathLike) -> list[BackupInfo]:
    """Return all backups in `directory`, the newest first, every byte checked; empty if there is no such directory.

    Examples:
        >>> [(info.path.name, info.status) for info in unisono.callbacks.list_backups("run")]
        [('backup-000002.unisono', 'good'), ('backup-000001.unisono', 'good')]
    """
    return [_inspect(path) for path in backup_paths(storage_path("directory", directory))]


def latest_backup(directory: str | os.PathLike) -> BackupInfo | None:
    """Return the `BackupInfo` of the newest good backup in the directory given to `BackupAndRestore`, or None.

    Examples:
        >>> info = unisono.callbacks.latest_backup("run")
        >>> info.path.name, info.epoch, info.step
        ('backup-000002.unisono', 2, 0)
    """
    paths = backup_paths(storage_path("directory", directory))
    return next((info for info in map(_inspect, paths) if info.status == "good"), None)


def read_backup(path: str | os.PathLike) -> tuple[dict[str, Any], Any]:
    """Return `(summary, content)` of one backup, with every byte checked; `docs/guides/resume.md` explains them.

    Raises:
        DamagedFileError: the file is not as it was written.
        NewerFormatError: it was written by a newer version.
        BackupMismatchError: it was written by version 0.2.

    Examples:
        >>> summary, content = unisono.callbacks.read_backup("run/backup-000002.unisono")
        >>> summary["total_steps"], sorted(content)
        (4, ['calendar', 'callbacks', 'counters', 'fingerprint', 'variables', 'workers'])
    """
    return read_checked(storage_path("path", path))


def read_checked(path: Path, outline: bool = False, only: int | None = None) -> tuple[dict[str, Any], Any]:
    """Do the same as `read_backup`; check, but do not keep, arrays of an `outline` and shards of workers but `only`."""
    summary, content = container.read(path, outline)
    content = shard_files.with_parts(path, content, outline, only)
    schema.check(path, summary, content)
    return summary, content


def backup_paths(directory: Any, fit: int | None = None, owner: str | None = None) -> list[Path]:
    """Return the files with a backup's name, the newest first; of one fit of a process, or of all."""
    places = ((_place(name), name) for name in names_in(directory, contains=owner))
    found = [(*place, name) for place, name in places if place and fit in (None, place[0])]
    return [directory / name for _, _, name in sorted(found, reverse=True)]


def _place(name: str) -> tuple[int, int] | None:
    """Return `(fit, number)` of a backup: which fit of its process made it, from 1, and its number among that fit's."""
    match = _NAME.match(name)
    return (int(match[1] or 1), int(match[2])) if match else None


class Found(NamedTuple):
    """The backup from which a run resumes."""

    path: Path | None
    content: Any
    problems: list[str]  # a sentence for each newer backup that was skipped


class BackupStore:
    """Writes and finds the backups of one run; owns the names in its directory. One process writes.

    Each fit of a script has its own backups: those made after as many fits of their process in that directory. `check` is
    called before anything is changed, and before a backup gets its name; what it raises ends the save.
    """

    def __init__(self, directory: str | os.PathLike, keep: int, check: Callable[[], object] = lambda: None):
        self.directory = storage_path("directory", directory)
        self.fit = 1
        self._newest: int | None = None  # the number of the newest backup, once it is known
        self._run = uuid.uuid4().hex
        self._keep = keep  # files that remain after a save, at least 1
        self._kept: list[str] = []  # the names of damaged ones, none of which was good when the run began
        self._check = check

    def prepare(self) -> None:
        """Create the directory, or raise a SaveError."""
        try:
            if not is_remote(self.directory):  # the owner's object says whether a store can be written
                self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise save_error(self.directory, error) from error
        self.fit, self._newest = 1 + _finished[self._key()], None

    def mark_finished(self) -> None:
        """Note that the fit is done, so that the next one in this process is a different one."""
        _finished[self._key()] += 1

    def _key(self) -> str:
        return str(self.directory) if is_remote(self.directory) else os.path.realpath(self.directory)

    def others(self) -> list[Path]:
        """Return the backups of other fits of the script."""
        own = backup_paths(self.directory, self.fit)
        return [path for path in backup_paths(self.directory) if path not in own]

    def remove_leftovers(self) -> None:
        """Remove what writes that were interrupted left behind. The owner of the directory calls it."""
        remove_leftovers(self.directory)
        names = set(names_in(self.directory))
        for name in names:
            if shard_files.IS_PART.match(name) and f"{name.partition('.')[0]}.unisono" not in names:
                _remove(self.directory / name)

    def newest_good(
        self, read: Callable[[Path], Any] = lambda path: read_checked(path)[1], owner: str | None = None
    ) -> Found:
        """Return the newest backup that is complete; later backups continue its run. `read` gives the content of a backup.

        A list of the store that lacks the file of the `owner` is not believed.
        Raise a NewerFormatError if a newer version wrote the newest, a BackupMismatchError if one is of another
        run, or if version 0.2 wrote the newest.
        """
        problems: list[str] = []
        paths = backup_paths(self.directory, self.fit, owner)
        self._newest = max((place[1] for path in paths if (place := _place(path.name))), default=0)
        for path in paths:
            try:
                content, self._run = read(path), self._run_of(path)
            except StoreError:
                raise
            except OSError as error:
                problems.append(str(error))
            except MemoryError:
                problems.append(f"{path} is too large for the memory of this machine.")
            else:
                return Found(path, content, problems)
        self._run = uuid.uuid4().hex
        self._kept = [path.name for path in paths]
        return Found(None, None, problems)

    def _run_of(self, newest: Path) -> str:
        """Return the run that the newest good backup belongs to, and with it all others of this fit."""
        summary = container.read_summary(newest)
        run, self._kept = summary["run"], summary.get("kept") or []
        for path in backup_paths(self.directory, self.fit):
            with contextlib.suppress(OSError, container.NewerFormatError):
                other = container.read_summary(path).get("run", run)
                if other != run and read_checked(path, outline=True):  # a damaged one says nothing
                    raise container.BackupMismatchError(
                        f"{path} and {newest} belong to different runs ({str(other)[:8]!a} and {run[:8]}), but are in "
                        "one directory: move the files of one run to a separate directory."
                    )
        return run

    def write(self, content: Any, summary: Mapping[str, Any]) -> None:
        """Write one backup under the next number, then remove the oldest beyond `keep`; on SaveError it removed none."""
        self._check()
        number = self.next_number()
        path = self.path_of(self.fit, number)
        stamped = {**summary, "time": time.time(), "run": self._run}
        if self._kept:
            stamped["kept"] = self._kept
        try:
            write_safely(
                path, lambda stream: container.write(stream, content, stamped), self._check, new=True
            )
        except StoreError:
            self._newest = number  # it may be there: the answer was lost
            raise
        self._newest = number
        with contextlib.suppress(StoreError):  # the next save removes it
            for old in self._removable()[self._keep :]:
                _remove(old)

    def next_number(self) -> int:
        """Return the number of the next backup. Its own are counted, because listing a store takes time."""
        if self._newest is None:
            places = [_place(path.name) for path in backup_paths(self.directory, self.fit)[:1]]
            self._newest = places[0][1] if places and places[0] else 0
        return 1 + self._newest

    def path_of(self, fit: int, number: int) -> Path:
        """Return the path of a backup of a fit."""
        return self.directory / f"backup-{'' if fit == 1 else f'fit{fit}-'}{number:06d}.unisono"

    def delete_all(self) -> None:
        """Remove the backups of this fit, but not the damaged ones in spite of which it began."""
        self._check()
        for path in self._removable():
            _remove(path)

    def _removable(self) -> list[Path]:
        return [path for path in backup_paths(self.directory, self.fit) if path.name not in self._kept]

    def remove_directory(self) -> None:
        """Remove the directory if nothing is in it."""
        with contextlib.suppress(OSError):
            if not is_remote(self.directory):
                self.directory.rmdir()


def _remove(path: Path) -> None:
    """Delete a backup and its parts, or a single part. Keep files that only match by name."""
    for file in [path, *shard_files.part_paths(path)]:
        with contextlib.suppress(OSError):
            if is_own(file, _MARK):
                remove_file(file)


def _inspect(path: Path) -> BackupInfo:
    size = 0
    try:
        size = sum(size_of(file) for file in [path, *shard_files.part_paths(path)])
        summary, _ = read_checked(path, outline=True)
    except (container.NewerFormatError, container.BackupMismatchError) as error:
        status = "newer" if isinstance(error, container.NewerFormatError) else "older"
        return BackupInfo(path, status, size=size, problem=str(error))
    except (OSError, MemoryError) as error:
        problem = str(error) or f"{path} is too large for the memory of this machine."
        return BackupInfo(path, "damaged", size=size, problem=problem)
    fields = {name: summary.get(name) for name in ("epoch", "step", "total_steps", "time", "run")}
    return BackupInfo(path, "good", size=size, **fields)
