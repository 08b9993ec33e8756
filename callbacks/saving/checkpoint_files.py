"""Checkpoint files: each carries its checksum as its last line, by which a callback knows the files that it wrote."""

import contextlib
import hashlib
import itertools
import os
import re
import stat
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ...distribute.objects import ask_store, is_remote, names_in, remove_file, size_of
from ...distribute.storage import storage_path
from ..safe_file import is_own, open_plain, rename_safely, temporary_path

_LAST_LINE = re.compile(rb"BLAKE2b of all bytes before this line: ([0-9a-f]{128})\n\Z")
_LAST_LINE_BYTES = len(b"BLAKE2b of all bytes before this line: \n") + 128
_ZIP_BEGIN, _ZIP_END, _ZIP_END_BYTES = b"PK\3\4", b"PK\5\6", 22
_HDF5_BEGIN = b"\x89HDF\r\n\x1a\n"
# Version of the superblock to its offset of the end of the file.
_HDF5_END_AT = {0: 40, 1: 44, 2: 28, 3: 28}


def write_checkpoint(path: Path, write: Callable[[Path], object]) -> str:
    """Write `path` with `write(temporary path)` and its checksum at the end, as `write_safely`; return the checksum.

    A file that is neither a ZIP archive nor HDF5 is left as it was written. If no `ModelCheckpoint` wrote the old file, it
    is renamed to `path` + ".old", with a warning.
    """
    temporary = temporary_path(path)
    with rename_safely(temporary, path, lambda: keep_foreign_file(path)):
        write(temporary)
        digest = _append_checksum(temporary)
    return digest


def verify_checkpoint(path: Any) -> bool | None:
    """Return whether `path` has the bytes that `ModelCheckpoint` wrote; None if it carries no checksum.

    The result is False for a `.keras` or `.h5` file whose end is missing, whoever wrote it.

    Examples:
        >>> history = model.fit(x, y, verbose=0, callbacks=[unisono.callbacks.ModelCheckpoint("checked.keras")])
        >>> unisono.callbacks.verify_checkpoint("checked.keras")
        True
    """
    digest, end = _read_checksum(place := storage_path("path", path))
    return None if digest is None else digest != "" and _blake2b(place, end) == digest


def checkpoint_checksum(path: str | Path) -> str:
    """Return the stored checksum, else that of the bytes; empty where the end of a ZIP archive or of HDF5 is missing."""
    digest, end = _read_checksum(path)
    return _blake2b(path, end) if digest is None else digest


def checkpoints_in(directory: Any) -> list[Path]:
    """Return the files in a folder that carry a checksum or should, sorted."""

    def may_have_checksum(path: Any) -> bool:
        try:
            return _read_checksum(path)[0] is not None
        except OSError:
            return True

    names = (name for name in sorted(names_in(directory)) if name.endswith((".keras", ".h5")))
    paths = (directory / name for name in names if not name.startswith("."))
    return [path for path in paths if may_have_checksum(path)]


class Saved(NamedTuple):
    """A checkpoint that a callback wrote."""

    name: str  # relative to the folder of the callback
    value: float | None  # of the log that is monitored
    digest: str | None  # its checksum as it was written; None where this process writes no files


def remove_checkpoint(folder: Any, saved: Saved) -> None:
    """Remove a file that lies below the folder, without links, if its checksum is the one that was written."""
    path = folder / saved.name
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if is_remote(path):
            if saved.digest and checkpoint_checksum(path) == saved.digest:
                remove_file(path)
            return
        inside = path.parent.resolve().is_relative_to(folder.resolve())
        plain = stat.S_ISREG(path.lstat().st_mode)
        if saved.digest and plain and inside and checkpoint_checksum(path) == saved.digest:
            path.unlink()


def valid_entries(saved: Any) -> list[Saved]:
    """Return the entries of a saved list that are of the form of `Saved`, with names of files below a folder."""
    result = []
    for entry in saved if isinstance(saved, list | tuple) else ():
        name, value, digest = entry if isinstance(entry, list | tuple) and len(entry) == 3 else (None,) * 3
        is_number = value is None or (isinstance(value, float | int) and not isinstance(value, bool))
        if not (is_number and isinstance(name, str) and isinstance(digest, str | None)):
            continue
        if not os.path.isabs(name) and ".." not in Path(name).parts:
            result.append(Saved(name, value, digest))
    return result


def keep_foreign_file(path: Any) -> None:
    """Rename a file that has content and that no `ModelCheckpoint` wrote: Keras would overwrite it."""
    try:
        if not size_of(path) or is_own(path, _LAST_LINE):
            return
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError:
        if is_remote(path):
            raise
    names = (f"{path}.old{number or ''}" for number in itertools.count())
    if is_remote(path):
        there = set(names_in(path.parent))
        kept = next(name for name in names if name.rpartition("/")[2] not in there)
        ask_store(path, lambda: path.fs.copy(path.path, path.with_name(kept.rpartition("/")[2]).path))
    else:
        kept = next(name for name in names if not os.path.lexists(name))
        os.rename(path, kept)
    warnings.warn(
        f"`ModelCheckpoint` renamed {path}, which it did not write, to {kept}, because its `filepath` names that file. "
        "Remove the renamed file if it is not needed, or choose another `filepath`."
    )


def _append_checksum(path: Path) -> str:
    """Add the checksum to the end of a ZIP archive or of HDF5; return it."""
    with open(path, "rb+") as stream:
        if _end_of_content(stream) != _size(stream):
            return _blake2b(path, None)
        if _is_zip(stream):
            stream.seek(-2, os.SEEK_END)
            stream.write(_LAST_LINE_BYTES.to_bytes(2, "little"))  # the length of the comment that follows
            stream.flush()
        digest = _blake2b(path, None)
        stream.seek(0, os.SEEK_END)
        stream.write(f"BLAKE2b of all bytes before this line: {digest}\n".encode())
    return digest


def _read_checksum(path: str | Path) -> tuple[str | None, int | None]:
    """Return (checksum: None without one, empty if the end of the file is damaged; end of its bytes: None for all)."""
    with open_plain(path) as stream:
        size = _size(stream)
        stream.seek(max(0, size - _LAST_LINE_BYTES))
        if (last := _LAST_LINE.fullmatch(stream.read(_LAST_LINE_BYTES))) is not None:
            return last[1].decode(), size - _LAST_LINE_BYTES
        return (None if _is_whole(stream) else ""), None


def _is_whole(stream: BinaryIO) -> bool:
    """Return whether a file without a checksum ends where it says; True also for an unknown format."""
    if (end := _end_of_content(stream)) is None:
        stream.seek(0)
        return not stream.read(8).startswith((_ZIP_BEGIN, _HDF5_BEGIN))
    if not _is_zip(stream):
        return end == _size(stream)
    stream.seek(end - 2)
    comment = int.from_bytes(stream.read(2), "little")
    return end + comment == _size(stream) and comment != _LAST_LINE_BYTES  # a checksum is missing there


def _end_of_content(stream: BinaryIO) -> int | None:
    """Return the end of the bytes that readers of this format use; None where the file does not say."""
    if _is_zip(stream):
        begin = max(0, _size(stream) - _ZIP_END_BYTES - 0xFFFF)
        stream.seek(begin)
        found = stream.read().rfind(_ZIP_END)
        return None if found < 0 else begin + found + _ZIP_END_BYTES
    stream.seek(0)
    head = stream.read(64)
    at = _HDF5_END_AT.get(head[8]) if head.startswith(_HDF5_BEGIN) and len(head) == 64 else None
    return None if at is None else int.from_bytes(head[at : at + 8], "little")


def _is_zip(stream: BinaryIO) -> bool:
    stream.seek(0)
    return stream.read(4) == _ZIP_BEGIN


def _size(stream: BinaryIO) -> int:
    return stream.seek(0, os.SEEK_END)


def _blake2b(path: str | Path, end: int | None) -> str:
    """Return the checksum of the first `end` bytes; None: of all."""
    digest = hashlib.blake2b()
    with open_plain(path) as stream:
        left = _size(stream) if end is None else end
        stream.seek(0)
        while left > 0 and (block := stream.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()
