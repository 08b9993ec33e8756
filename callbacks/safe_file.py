"""Files that are either complete or absent: written under another name, flushed to disk, then renamed."""

import contextlib
import errno
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ..distribute.objects import SaveError, is_remote, names_in, open_plain, upload
from .process_identity import ProcessIdentity, this_process

_TEMPORARY = re.compile(r"^\..*\.([0-9a-f-]+)\.tmp(?:\.|$)")
_DAY = 86400.0  # seconds
_MOST_BYTES = 1 << 20  # at the beginning and at the end of a file that are read to find out who wrote it


def write_safely(
    path: Any,
    write: Callable[[BinaryIO], object],
    check: Callable[[], object] = lambda: None,
    new: bool = False,
) -> None:
    """Write the file `path` with `write(stream)`; after a failure or crash the old file is unchanged.

    Order: a new file next to it, `write`, flush and fsync of the file, `check`, rename to `path`, fsync of the directory.
    The `errno` of a SaveError says whether the directory is gone, read-only or full, or the disk failed.
    In a store: a temporary file, `write`, `check`, one upload. A `new` one is written only where none has its name: the
    cause of the SaveError is a FileExistsError, where the file system or the store can tell.
    """
    if is_remote(path):
        try:
            with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
                with open(Path(folder, path.name), "wb") as stream:
                    write(stream)
                check()
                upload(Path(folder, path.name), path, new)
        except SaveError:
            raise
        except OSError as error:
            raise save_error(path.parent, error) from error
        return
    path = Path(path)
    temporary = temporary_path(path)
    with rename_safely(temporary, path, check, new), open(temporary, "wb") as stream:
        write(stream)


@contextlib.contextmanager
def rename_safely(
    temporary: Path, path: Path, check: Callable[[], object] = lambda: None, new: bool = False
) -> Iterator[None]:
    """Do the same for a body that writes the file `temporary` itself, next to `path`, which it replaces."""
    try:
        yield
        with open(temporary, "rb+") as stream:
            os.fsync(stream.fileno())
        check()
        _rename(temporary, path, new)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and not isinstance(error, SaveError):
            raise save_error(temporary.parent, error) from error
        raise
    try:
        sync_directory(path.parent)
    except OSError as error:
        raise SaveError(
            error.errno or errno.EIO,
            f"{path} is complete, but flushing its directory failed ({error.strerror}): it may be lost if the machine "
            "loses power now. Check the disk and run again.",
        ) from error


def _rename(temporary: Path, path: Path, new: bool) -> None:
    try:
        (os.link if new else os.replace)(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        os.replace(temporary, path)
    if new:
        temporary.unlink(missing_ok=True)


def save_error(directory: Any, error: OSError) -> SaveError:
    """Return the sentence for a failed save in `directory`."""
    reason = error.strerror or f"{type(error).__name__}: {error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        directory = Path(tempfile.gettempdir()) if is_remote(directory) else directory
        with contextlib.suppress(OSError):
            reason += f", {shutil.disk_usage(directory).free} bytes free"
        fix = "Free space there"
    elif error.errno == errno.EFBIG:
        fix = "Allow larger files (`ulimit -f`)"
    elif is_remote(directory):
        fix = "Check the bucket, your permissions and the network"
    elif not directory.is_dir():
        reason, fix = "the directory is gone", "Create it again"
    else:
        fix = "Make it writable"
    message = f"Saving in {directory} failed ({reason}); earlier files are unchanged. {fix} and run again."
    return SaveError(error.errno or errno.EIO, message)


def explain_going_on(error: OSError, what_next: str) -> str:
    """Return the sentences for a failed save of a run that goes on."""
    return (
        f"{str(error).removesuffix(' and run again.').removesuffix('.')}. Training goes on, and {what_next}."
    )


def check_overwrite(argument: str, path: Any, mark: re.Pattern[bytes]) -> None:
    """Raise a SaveError that names the `argument`, if the file at `path` has content but not the `mark` of the callback."""
    try:
        found = None if is_remote(path) else path.stat()
        unwritten = found is not None and not (stat.S_ISREG(found.st_mode) and found.st_size)
        if unwritten or is_own(path, mark):
            return
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        if is_remote(path):
            raise
    raise SaveError(
        errno.EEXIST,
        f"{argument} would overwrite {path}, a file that it did not write: move the file, or choose another path.",
    )


def is_own(path: Any, mark: re.Pattern[bytes]) -> bool:
    """Return whether a plain file begins or ends with the `mark` of a callback: the one way to know its own files."""
    with open_plain(path) as stream:
        text = stream.read(_MOST_BYTES)
        stream.seek(max(len(text), stream.seek(0, os.SEEK_END) - _MOST_BYTES))
        return mark.search(text + stream.read()) is not None


def begins_with_json(*keys: str, lines: bool = True) -> re.Pattern[bytes]:
    """Return the mark of files whose first line, or all of it, is a JSON object with these keys in this order."""
    inside = ("[^\n]*?" if lines else "[^\0]*?").join(f'"{key}": ' for key in keys)
    return re.compile(rf"\A{{\s*{inside}".encode())


def read_plain(path: Any, most: int) -> bytes:
    """Return at most `most` bytes of a plain file; raise an OSError for anything else."""
    with open_plain(path) as stream:
        return stream.read(most)


def temporary_path(path: Path) -> Path:
    """Return the name under which `path` is written; it keeps the suffixes, on which some writers depend."""
    stem, dot, suffixes = path.name.partition(".")
    return path.with_name(f".{stem}.{this_process()}.tmp{dot}{suffixes}")


def remove_leftovers(directory: Any) -> None:
    """Remove incomplete files whose writers no longer exist; those of other machines when a day old."""
    for name in () if is_remote(directory) else names_in(directory):
        match = _TEMPORARY.match(name)
        process = ProcessIdentity.parse(match[1]) if match else None
        if process is None or process == this_process():
            continue
        with contextlib.suppress(OSError):
            runs, path = process.runs(), directory / name
            if runs is False or (runs is None and time.time() - path.lstat().st_mtime > _DAY):
                path.unlink()


def sync_directory(directory: Path) -> None:
    """Flush a directory, so that a rename in it survives a power failure, where the file system can do that."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)
