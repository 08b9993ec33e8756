"""Files and objects alike: a path is a local file, or an object in a store such as a bucket (a `upath.UPath`).

A store renames and truncates nothing: an object is written whole, and visible to every reader at once.
"""

import errno
import io
import os
import random
import re
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .environment import without_password

_PAUSES = (0.2, 0.6, 1.8, 5.4)  # seconds before a store is asked again
_jitter = random.Random()  # not the generator that training draws from
_SECRET_NAME = re.compile("KEY|SECRET|TOKEN|PASSW|CREDENTIAL|CONNECTION_STRING|SAS", re.IGNORECASE)
_SIGNATURE = re.compile(r"(?i)\b(sig|signature|accountkey|token|x-amz-signature)=[^&;\s'\"]+")
_BUFFER_BYTES = 1 << 20


class SaveError(OSError):
    """A save failed. Earlier files are unchanged.

    Examples:
        >>> model.fit(x, y, verbose=0, callbacks=[unisono.callbacks.BackupAndRestore("/proc/backup")])
        Traceback (most recent call last):
        SaveError: Saving in /proc failed ...
    """


class StoreError(SaveError):
    """A store failed in a way that may pass, whatever it answered: while training runs, it is a warning.

    Any other SaveError ends training. `ask_store` alone tells the two apart, for every call of every file of a run.
    """


def is_remote(path: Any) -> bool:
    """Return whether a path is a `upath.UPath` in a store, rather than a local one."""
    return hasattr(path, "storage_options") and not isinstance(path, str)


def open_plain(path: Any, may_be_absent: bool = True) -> io.BufferedReader:
    """Open a plain file or an object for reading; reject FIFOs, devices and folders, without waiting, by an OSError.

    Unless an object `may_be_absent`, because a list has named it, its absence is an error of the store.
    """
    if is_remote(path):
        return io.BufferedReader(_Object(path, may_be_absent), _BUFFER_BYTES)
    _reject_unless_plain(os.stat(path), path)  # opening a device can have effects
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        _reject_unless_plain(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def _reject_unless_plain(status: os.stat_result, path: str | Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))


def names_in(directory: Any, contains: str | None = None) -> list[str]:
    """Return the names in a folder, in any order; none where there is no such folder.

    If it `contains` a name for certain, a list of a store without it is an error of the store.
    """

    def list_objects() -> list[str]:
        directory.fs.invalidate_cache()  # others write, too
        found = directory.fs.ls(directory.path, detail=False)
        names = [each.rstrip("/").rpartition("/")[2] for each in found if each.rstrip("/") != own]
        if contains is not None and contains not in names:
            raise OSError(errno.EIO, f"the store does not list {contains}, which is there")
        return names

    try:
        if not is_remote(directory):
            return os.listdir(directory)
        own = directory.path.rstrip("/")
        return ask_store(directory, list_objects, may_be_absent=contains is None)
    except (FileNotFoundError, NotADirectoryError):
        return []


def names_below(path: Any, suffix: str) -> list[str]:
    """List the files with a suffix at any depth below a folder, relative to it; "" is `path` itself, if it is a file."""
    if not is_remote(path):
        return [str(each.relative_to(path)) for each in path.rglob(f"*{suffix}")] if path.is_dir() else [""]
    path.fs.invalidate_cache()  # others write, too
    own = path.path.rstrip("/")
    found = ask_store(path, lambda: path.fs.find(path.path))
    return [each.removeprefix(own).lstrip("/") for each in found if each.endswith(suffix)]


def size_of(path: Any, may_be_absent: bool = True) -> int:
    """Return the bytes of a file or an object; raise a FileNotFoundError without one, if it `may_be_absent`."""
    if not is_remote(path):
        return path.lstat().st_size
    path.fs.invalidate_cache()
    return int(ask_store(path, lambda: path.fs.info(path.path), may_be_absent)["size"])


def remove_file(path: Any, is_there: bool = False) -> None:
    """Remove a file or an object; raise a FileNotFoundError without one.

    If an object certainly `is_there`, only an attempt whose answer was lost can have removed it: else the bucket is absent.
    """
    if not is_remote(path):
        path.unlink()
        return
    was_lost = False

    def remove() -> None:
        nonlocal was_lost
        try:
            path.fs.rm_file(path.path)
        except FileNotFoundError:
            if not was_lost:
                raise
        except Exception:  # each store has its own errors
            was_lost = True
            raise

    ask_store(path, remove, may_be_absent=not is_there)


def upload(source: Path, path: Any, new: bool = False) -> None:
    """Write a local file as an object, whole. If it must be `new`, raise a FileExistsError if the name is taken.

    An attempt whose answer was lost may have written it: an object with the same bytes is this one.
    """
    exclusive = [new]

    def write() -> None:
        try:
            if exclusive[0]:
                path.fs.put_file(str(source), path.path, mode="create")
            else:
                path.fs.put_file(str(source), path.path)
        except (TypeError, NotImplementedError):  # the store knows no exclusive write
            if not exclusive[0]:
                raise
            if path.fs.exists(path.path):
                raise FileExistsError(errno.EEXIST, "it exists", str(path)) from None
            path.fs.put_file(str(source), path.path)
        except FileExistsError:
            with open_plain(path) as stream:
                if stream.read() != source.read_bytes():
                    raise
        if size_of(path) != source.stat().st_size:
            exclusive[0] = False  # it is ours, and not whole
            raise OSError(errno.EIO, "the store kept only a part of it")

    ask_store(path, write, may_be_absent=False)


def download(path: Any, folder: Any, may_be_absent: bool = True) -> Path:
    """Write an object to a local folder; return the file, which has its name. `may_be_absent` is that of `open_plain`."""
    local = Path(folder, path.name)
    with open_plain(path, may_be_absent) as source, open(local, "wb") as target:
        shutil.copyfileobj(source, target, _BUFFER_BYTES)
    return local


def ask_store(path: Any, call: Callable[[], Any], may_be_absent: bool = True) -> Any:
    """Call `call` until it succeeds, at most five times, with pauses that vary; return what it returns.

    Only an answer about the object is not asked for again: that one exists, or, if it `may_be_absent`, that there is none.
    To a write, an absent object is an absent bucket. All else may pass: expired credentials are renewed, quotas raised.

    Raises FileNotFoundError, FileExistsError or a StoreError with the cause, without credentials.
    """
    pauses = iter(_PAUSES)
    while True:
        try:
            return call()
        except Exception as error:  # each store has its own errors
            if isinstance(error, FileExistsError) or (may_be_absent and isinstance(error, FileNotFoundError)):
                raise
            pause = next(pauses, None)
            if pause is None:
                reason = f"{type(error).__name__}: {without_secrets(str(error), path)}"
                raise StoreError(
                    getattr(error, "errno", None) or errno.EIO,
                    f"The store failed at {path} ({reason}); earlier files are unchanged. Check the bucket, your "
                    "permissions and the network and run again.",
                ) from None
        time.sleep(pause * _jitter.uniform(0.5, 1.5))


def without_secrets(text: str, path: Any) -> str:
    """Return an error of a store in one line, without credentials from its options and the environment."""
    given = [
        path.storage_options,
        *(v for v in path.storage_options.values() if isinstance(v, dict)),
        os.environ,
    ]
    for name, value in (pair for options in given for pair in options.items()):
        if _SECRET_NAME.search(name) and isinstance(value, str) and len(value) >= 4:
            text = text.replace(value, "***")
    text = re.sub(r"\s+", " ", _SIGNATURE.sub(r"\1=***", without_password(text)))
    return text if len(text) <= 300 else f"{text[:297]}..."


class _Object(io.RawIOBase):
    """The bytes of an object, read in parts."""

    def __init__(self, path: Any, may_be_absent: bool = True) -> None:
        super().__init__()
        self._may_be_absent = may_be_absent
        self._path, self._at, self._size = path, 0, size_of(path, may_be_absent)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def readall(self) -> bytes:
        return self.read(max(0, self._size - self._at)) or b""  # in one part

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0

        def read() -> bytes:
            part = self._path.fs.cat_file(self._path.path, start=self._at, end=end)
            if len(part) != end - self._at:
                raise OSError(errno.EIO, f"{len(part)} of {end - self._at} bytes were read")
            return part

        buffer[: end - self._at] = ask_store(self._path, read, self._may_be_absent)
        begin, self._at = self._at, end
        return end - begin
