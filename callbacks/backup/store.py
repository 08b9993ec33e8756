"""A directory of backups: which there are, the newest good one, the next name, how many to keep."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..safe_file import remove_leftovers, save_error, write_safely
from . import container

_NAME = re.compile(r"^backup-(\d+)\.unisono$")


@dataclasses.dataclass(frozen=True)
class BackupInfo:
    """What is known about one backup without loading it. It can be used as a path."""

    path: Path
    status: str  # "good", "damaged" or "newer" (written by a newer version); every byte was checked
    epoch: int | None = None  # at which a run resumes, 0-based; None unless good, as the next three
    step: int | None = None  # steps of that epoch that are done
    total_steps: int | None = None  # optimizer steps since the beginning of training
    time: float | None = None  # seconds since 1970, when it was taken
    size: int = 0  # bytes
    problem: str | None = None  # what is wrong with a file that is not good

    def __fspath__(self) -> str:
        return str(self.path)


def list_backups(directory: str | os.PathLike) -> list[BackupInfo]:
    """All backups in `directory`, the newest first, every byte checked; empty if there is no such directory."""
    return [_inspect(path) for path in backup_paths(directory)]


def latest_backup(directory: str | os.PathLike) -> BackupInfo | None:
    """The newest good backup in the directory given to `BackupAndRestore`, or None.

    It is a path, with the epoch, step, time and size as attributes.
    """
    return next((info for info in map(_inspect, backup_paths(directory)) if info.status == "good"), None)


def read_backup(path: str | os.PathLike) -> tuple[dict[str, Any], Any]:
    """`(summary, content)` of one backup, every byte checked; `docs/guides/checkpoints.md` explains them.

    Raises:
        DamagedFileError: the file is not as it was written.
        NewerFormatError: it was written by a newer version.
    """
    return container.read(Path(path))


def backup_paths(directory: str | os.PathLike) -> list[Path]:
    """The files with a backup's name, the newest first."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    numbered = [(int(match[1]), name) for name in names if (match := _NAME.match(name))]
    return [Path(directory) / name for _, name in sorted(numbered, reverse=True)]


class BackupStore:
    """Writes and finds the backups of one run; owns the names in its directory. One process writes."""

    def __init__(self, directory: str | os.PathLike, keep: int):
        self.directory = Path(directory)
        self._keep = keep  # files that remain after a save, at least 1

    def prepare(self) -> None:
        """Creates the directory, removes what interrupted writes left behind, and raises SaveError if it is not writable."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise save_error(self.directory, error) from error
        remove_leftovers(self.directory)
        probe = self.directory / "writable"
        write_safely(probe, lambda stream: stream.write(b"1"))
        probe.unlink()

    def newest_good(self) -> tuple[Path | None, Any, list[str]]:
        """`(path, content, problems)` of the newest backup that is complete; None and None where there is none.

        There is one problem, a sentence, for each newer one that was skipped.

        Raises:
            NewerFormatError: a newer version wrote the newest one.
        """
        problems: list[str] = []
        for path in backup_paths(self.directory):
            try:
                return path, container.read(path)[1], problems
            except OSError as error:
                problems.append(str(error))
        return None, None, problems

    def write(self, content: Any, summary: Mapping[str, Any]) -> None:
        """Writes one backup under the next number, then removes the oldest beyond `keep`; on SaveError it did neither."""
        newest = backup_paths(self.directory)[:1]
        number = int(_NAME.match(newest[0].name)[1]) + 1 if newest else 1  # pyright: ignore[reportOptionalSubscript]
        path = self.directory / f"backup-{number:06d}.unisono"
        stamped = {**summary, "time": time.time()}
        write_safely(path, lambda stream: container.write(stream, content, stamped))
        for old in backup_paths(self.directory)[self._keep :]:
            with contextlib.suppress(OSError):
                old.unlink()

    def delete_all(self) -> None:
        """Removes the backups, and the directory if nothing else is in it."""
        for path in backup_paths(self.directory):
            with contextlib.suppress(OSError):
                path.unlink()
        with contextlib.suppress(OSError):
            self.directory.rmdir()


def _inspect(path: Path) -> BackupInfo:
    size = path.stat().st_size if path.exists() else 0
    try:
        summary = container.read_summary(path)
    except container.NewerFormatError as error:
        return BackupInfo(path, "newer", size=size, problem=str(error))
    except OSError as error:
        return BackupInfo(path, "damaged", size=size, problem=str(error))
    fields = {name: summary.get(name) for name in ("epoch", "step", "total_steps", "time")}
    return BackupInfo(path, "good", size=size, **fields)
