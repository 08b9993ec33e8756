"""Files that are either complete or absent: written under another name, flushed to disk, then renamed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

SUM_SUFFIX = ".b2"
_TEMPORARY = re.compile(r"^\..*\.(\d+)\.tmp(?:\.|$)")


class SaveError(OSError):
    """A save failed. Earlier files are unchanged."""


def write_safely(path: str | Path, write: Callable[[BinaryIO], object]) -> None:
    """Writes the file `path` with `write(stream)`; after a failure or crash the old file is unchanged.

    Order: a new file beside it, `write`, flush and fsync of the file, rename to `path`, fsync of the directory.

    Raises:
        SaveError: the directory is gone, read-only or full, or the disk failed; `errno` says which.
    """
    path = Path(path)
    temporary = temporary_path(path)
    with rename_safely(temporary, path):
        with open(temporary, "wb") as stream:
            write(stream)


@contextlib.contextmanager
def rename_safely(temporary: Path, path: Path) -> Iterator[None]:
    """The same for a body that writes the file `temporary`, beside `path`, itself. Raises as `write_safely`."""
    try:
        yield
        with open(temporary, "rb+") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and not isinstance(error, SaveError):
            raise save_error(path.parent, error) from error
        raise


def save_error(directory: Path, error: OSError) -> SaveError:
    """The sentence for a failed save in `directory`."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        with contextlib.suppress(OSError):
            reason += f", {shutil.disk_usage(directory).free} bytes free"
        cure = "Free space there"
    elif error.errno == errno.EFBIG:
        cure = "Allow larger files (`ulimit -f`)"
    elif not directory.is_dir():
        reason, cure = "the directory is gone", "Create it again"
    else:
        cure = "Make it writable"
    message = f"Saving in {directory} failed ({reason}); earlier files are unchanged. {cure} and run again."
    return SaveError(error.errno or errno.EIO, message)


def temporary_path(path: Path) -> Path:
    """The name under which `path` is written; it keeps the suffixes, which some writers look at."""
    stem, dot, suffixes = path.name.partition(".")
    return path.with_name(f".{stem}.{os.getpid()}.tmp{dot}{suffixes}")


def remove_leftovers(directory: Path) -> None:
    """Removes incomplete files of processes that no longer exist."""
    for name in os.listdir(directory) if directory.is_dir() else ():
        match = _TEMPORARY.match(name)
        if match and not _runs_elsewhere(int(match[1])):
            with contextlib.suppress(OSError):
                (directory / name).unlink()


def _runs_elsewhere(pid: int) -> bool:
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def sync_directory(directory: Path) -> None:
    """Flushes a directory, so that a rename in it survives a power failure, where the file system can do that."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)


def write_sum(path: str | Path) -> None:
    """Writes the checksum of `path` beside it, as `path.b2`, in the form that `b2sum --check` reads."""
    path = Path(path)
    line = f"{_blake2b(path)}  {path.name}\n".encode()
    write_safely(sum_path(path), lambda stream: stream.write(line))


def sum_path(path: str | Path) -> Path:
    """The file with the checksum of `path`."""
    return Path(f"{path}{SUM_SUFFIX}")


def verify_sum(path: str | Path) -> bool | None:
    """Whether `path` has the bytes that were written; None where there is no checksum beside it."""
    try:
        expected = sum_path(path).read_text().split()
    except FileNotFoundError:
        return None
    return bool(expected) and _blake2b(Path(path)) == expected[0]


def _blake2b(path: Path) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, hashlib.blake2b).hexdigest()
