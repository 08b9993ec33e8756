"""Checkpoints that carry their own checksum, as their last line, where no listing of a folder sees it.

Readers of ZIP archives (`.keras`) and of HDF5 (`.h5`) pass over what follows their end. A ZIP says there how long a comment
follows, HDF5 says at its beginning where it ends: so a file that lost bytes, or its checksum, is told from a plain one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from ..distribute.storage import local_path
from .safe_file import open_plain, rename_safely, sync_directory, temporary_path

_SEAL = re.compile(rb"BLAKE2b of all bytes before this line: ([0-9a-f]{128})\n")
_SEAL_BYTES = len(b"BLAKE2b of all bytes before this line: \n") + 128
_ZIP_BEGIN, _ZIP_END, _ZIP_END_BYTES = b"PK\3\4", b"PK\5\6", 22
_HDF5_BEGIN = b"\x89HDF\r\n\x1a\n"
# Version of the superblock to where in it the end of the file is named.
_HDF5_END_AT = {0: 40, 1: 44, 2: 28, 3: 28}
_OLD_SUFFIX = ".b2"
_MOST_SUM_BYTES = 4096


def write_sealed(path: Path, write: Callable[[Path], object]) -> str:
    """Writes `path` with `write(temporary path)`, with its checksum as its end; returns the checksum.

    A file that is neither a ZIP archive nor HDF5 is left as it was written. After a failure the old file is unchanged.

    Raises:
        SaveError: as `write_safely`.
    """
    temporary = temporary_path(path)
    with rename_safely(temporary, path):
        write(temporary)
        digest, sealed = _seal(temporary)
        if not sealed:
            _remove_old_sum(path)  # before the new file can be there
    if sealed:
        with contextlib.suppress(OSError):  # the checksum in the file comes first
            _remove_old_sum(path)
    return digest


def verify_checkpoint(path: str | Path) -> bool | None:
    """Whether `path` has the bytes that `ModelCheckpoint` wrote; None where it carries no checksum and none is beside it.

    A `.keras` or `.h5` file whose end is missing is False, whoever wrote it.
    """
    digest, end = _stored(local_path("path", path))
    return None if digest is None else digest != "" and _blake2b(path, end) == digest


def sum_of(path: str | Path) -> str:
    """The checksum that `write_sealed` returned: the one that is stored, else that of the bytes; empty if damaged."""
    digest, end = _stored(path)
    return _blake2b(path, end) if digest is None else digest


def remove_sealed(path: Path) -> None:
    """Removes the file, and a checksum that an earlier version stored beside it."""
    path.unlink(missing_ok=True)
    old_sum_path(path).unlink(missing_ok=True)


def old_sum_path(path: str | Path) -> Path:
    """Where earlier versions stored the checksum of `path`, as `b2sum` writes it."""
    return Path(f"{path}{_OLD_SUFFIX}")


def checkpoints_in(directory: Path) -> list[Path]:
    """The files in a folder that carry a checksum or should, sorted; also those of which only an old checksum is left."""
    old = {path.with_name(path.name.removesuffix(_OLD_SUFFIX)) for path in directory.glob(f"*{_OLD_SUFFIX}")}
    plain = {path for ending in ("*.keras", "*.h5") for path in directory.glob(ending)}
    return sorted(old | {path for path in plain if not path.name.startswith(".") and _may_be_sealed(path)})


def is_sealed(path: Path) -> bool:
    """Whether a file carries a checksum, which is not compared with its bytes."""
    return bool(_stored(path)[0])


def _may_be_sealed(path: Path) -> bool:
    try:
        return _stored(path)[0] is not None
    except OSError:
        return False


def _seal(path: Path) -> tuple[str, bool]:
    """Adds the checksum to the end of a file; returns it, and whether the file has a form in which it has a place."""
    with open(path, "rb+") as stream:
        place = _end_of_content(stream)
        if place is None or place != _size(stream):
            return _blake2b(path, None), False
        if _is_zip(stream):
            stream.seek(-2, os.SEEK_END)
            stream.write(_SEAL_BYTES.to_bytes(2, "little"))  # the length of the comment that follows
            stream.flush()
        digest = _blake2b(path, None)
        stream.seek(0, os.SEEK_END)
        stream.write(f"BLAKE2b of all bytes before this line: {digest}\n".encode())
    return digest, True


def _stored(path: str | Path) -> tuple[str | None, int | None]:
    """(checksum, where the bytes end that it is of: None for all).

    The checksum is None where there is none, and empty where the end of the file is damaged.
    """
    with open_plain(path) as stream:
        size = _size(stream)
        stream.seek(max(0, size - _SEAL_BYTES))
        seal = _SEAL.fullmatch(stream.read(_SEAL_BYTES))
        if seal is not None:
            return seal[1].decode(), size - _SEAL_BYTES
        old = _old_sum(path)
        if old is not None:
            return old, None
        return (None if _is_whole(stream) else ""), None


def _is_whole(stream: BinaryIO) -> bool:
    """Whether a file without a checksum ends where it says; True also for a form that we do not know."""
    end = _end_of_content(stream)
    if end is None:
        stream.seek(0)
        return not stream.read(8).startswith((_ZIP_BEGIN, _HDF5_BEGIN))
    if not _is_zip(stream):
        return end == _size(stream)
    stream.seek(end - 2)
    comment = int.from_bytes(stream.read(2), "little")
    return end + comment == _size(stream) and comment != _SEAL_BYTES  # that long a comment was a checksum


def _end_of_content(stream: BinaryIO) -> int | None:
    """Where the bytes end that readers of this form look at; None where the file does not say."""
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
    place = stream.tell()
    stream.seek(0)
    found = stream.read(4) == _ZIP_BEGIN
    stream.seek(place)
    return found


def _size(stream: BinaryIO) -> int:
    return stream.seek(0, os.SEEK_END)


def _old_sum(path: str | Path) -> str | None:
    """The checksum that an earlier version stored beside `path`; None where there is none, empty where it is none."""
    try:
        with open_plain(old_sum_path(path)) as stream:
            words = stream.read(_MOST_SUM_BYTES).decode("ascii", "replace").split()
    except FileNotFoundError:
        return None
    return words[0] if words else ""


def _remove_old_sum(path: Path) -> None:
    if old_sum_path(path).exists():
        old_sum_path(path).unlink()
        sync_directory(path.parent)


def _blake2b(path: str | Path, end: int | None) -> str:
    """The checksum of the first `end` bytes; None: of all."""
    digest = hashlib.blake2b()
    with open_plain(path) as stream:
        left = _size(stream) if end is None else end
        stream.seek(0)
        while left > 0 and (block := stream.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()
