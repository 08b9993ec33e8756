"""One file for a tree of values and arrays, without pickle: `docs/contributing/backup-format.md` has the layout.

A right checksum does not prove who wrote a file, so everything that the manifest says is checked before it is used.
"""

import contextlib
import hashlib
import io
import json
import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

from ....distribute.objects import StoreError, open_plain
from .json_encoding import count, decode, encode

MAGIC = b"UNISONO\n"
VERSION = 1
ALIGNMENT = 64
DIGEST_BYTES = 32
_PREFIX = struct.Struct("<8sIQ")
MOST_MANIFEST_BYTES = 1 << 28
_CHUNK_BYTES = 1 << 22
_WRONG_MANIFEST = "is damaged: its manifest is not one of a backup"
# The errors of code that reads a malformed manifest.
WRONG = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, MemoryError)


class DamagedFileError(OSError):
    """The bytes of a file are not those that were written.

    Examples:
        >>> unisono.callbacks.read_backup("damaged.unisono")
        Traceback (most recent call last):
        DamagedFileError: damaged.unisono ...
    """


class NewerFormatError(RuntimeError):
    """The file is good, but a newer version wrote it, in a format that this one does not know."""


class BackupMismatchError(ValueError):
    """The backup is good, but belongs to another run, model, optimizer or data set."""


@contextlib.contextmanager
def report_damage(problem: str, advice: str = "") -> Iterator[None]:
    """Turn errors of code that reads malformed content into a DamagedFileError."""
    try:
        yield
    except BackupMismatchError:
        raise
    except WRONG as error:
        reason = f"{type(error).__name__}: {str(error)[:200]!a}"
        raise DamagedFileError(f"{problem} ({reason}).{advice}") from error


def write(stream: BinaryIO, content: Any, summary: Mapping[str, Any]) -> None:
    """Write `content` and its `summary`, JSON values that a listing shows without reading the arrays.

    Raise a TypeError for types other than dict, list, tuple, None, bool, number, str, bytes and NumPy arrays, and a
    ValueError if the plain values are too long.
    """
    arrays: list[np.ndarray] = []
    tree = encode(content, arrays, "")
    table, offset = [], 0
    for array in arrays:
        dtype = array.dtype
        # `<f4`, `|b1`, ...; of types that NumPy knows only through an extension, the name: `bfloat16`.
        name = dtype.name if dtype.kind == "V" or dtype.isbuiltin != 1 else dtype.newbyteorder("<").str
        table.append({"dtype": name, "shape": array.shape, "offset": offset, "bytes": array.nbytes})
        offset += _pad_size(array.nbytes)
    manifest = {"summary": summary, "content": tree, "arrays": table, "data_bytes": offset}
    text = json.dumps(manifest, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > MOST_MANIFEST_BYTES:
        raise ValueError(
            f"The state has {len(text)} bytes of plain values, but a backup stores at most {MOST_MANIFEST_BYTES}: in the "
            "state of callbacks, return long lists as NumPy arrays."
        )
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for piece in _pieces(text, arrays):
        digest.update(piece)
        stream.write(piece)
    stream.write(digest.digest())


def read(path: str | Path, outline: bool = False) -> tuple[dict[str, Any], Any]:
    """Return `(summary, content)` of a file, with every byte checked. Arrays are views of one read-only buffer.

    An `outline` takes little memory: its arrays are zeros. Raises DamagedFileError, NewerFormatError or OSError.
    """
    with _open_plain_file(path) as stream:
        return _load(path, stream, outline)


def read_summary(path: str | Path) -> dict[str, Any]:
    """Return only the summary, without checking the bytes of the file. Raise as `read`."""
    with _open_plain_file(path) as stream:
        return _manifest(path, stream)[0]["summary"]


def checksum(path: str | Path) -> bytes:
    """Return the checksum that a file ends with, unchecked."""
    with _open_plain_file(path) as stream:
        stream.seek(max(0, stream.seek(0, os.SEEK_END) - DIGEST_BYTES))
        return stream.read()


def parse(data: bytes) -> tuple[dict[str, Any], Any]:
    """Read bytes in memory as `read` reads a file."""
    return _load("The data", io.BytesIO(data))


def _open_plain_file(path: str | Path) -> BinaryIO:
    """Open a plain file; reject anything else, such as a FIFO or a device, before reading it."""
    try:
        return open_plain(path)
    except StoreError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise DamagedFileError(f"{path} is damaged: it cannot be read ({reason}).") from error


def _load(path: Any, stream: BinaryIO, outline: bool = False) -> tuple[dict[str, Any], Any]:
    manifest, begin, end = _manifest(path, stream)
    stream.seek(0)
    body = None if outline else memoryview(stream.read(end))
    _check(path, stream, end, body)

    def take(number: Any, raw: bool = False) -> Any:
        array = arrays[count(number)]
        return array if not raw else b"" if outline else array.tobytes()

    with report_damage(f"{path} {_WRONG_MANIFEST}"):
        arrays = [_array(entry, begin, end, body) for entry in manifest["arrays"]]
        return manifest["summary"], decode(manifest["content"], take)


def _manifest(path: Any, stream: BinaryIO) -> tuple[dict[str, Any], int, int]:
    """Read `(manifest, start of the data, end of the data)` from the head of a file, and check the size that it states."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    if size < _PREFIX.size + DIGEST_BYTES:
        raise DamagedFileError(f"{path} is damaged: it has {size} bytes, too few for a header.")
    magic, version, length = _PREFIX.unpack(stream.read(_PREFIX.size).ljust(_PREFIX.size))
    if magic != MAGIC:
        raise DamagedFileError(f"{path} is damaged or not a backup of unisono: it begins with {magic!r}.")
    if version > VERSION:
        _check(path, stream, size - DIGEST_BYTES)
        raise NewerFormatError(
            f"{path} has format version {version}; this version of unisono reads versions up to {VERSION}. "
            "Install the newer unisono, or move the file away to resume from an older backup."
        )
    if version < 1 or length > min(MOST_MANIFEST_BYTES, size - _PREFIX.size - DIGEST_BYTES):
        raise DamagedFileError(f"{path} is damaged: version {version}, a manifest of {length} bytes.")
    begin = _pad_size(_PREFIX.size + length)
    with report_damage(f"{path} {_WRONG_MANIFEST}"):
        manifest = json.loads(stream.read(length))
        end = begin + count(manifest["data_bytes"])
        if not isinstance(manifest["summary"], dict):
            raise TypeError("the summary is not an object")
    if end + DIGEST_BYTES != size:
        raise DamagedFileError(f"{path} is damaged: it has {size} bytes, not {end + DIGEST_BYTES}.")
    return manifest, begin, end


def _check(path: Any, stream: BinaryIO, end: int, body: memoryview | None = None) -> None:
    """Raise if the checksum is not that of the `end` bytes before it: of `body`, or read piece by piece."""
    digest = hashlib.blake2b(body or b"", digest_size=DIGEST_BYTES)
    if body is None:
        stream.seek(0)
        for left in range(end, 0, -_CHUNK_BYTES):
            digest.update(stream.read(min(_CHUNK_BYTES, left)))
    stream.seek(end)
    if digest.digest() != stream.read(DIGEST_BYTES):
        raise DamagedFileError(f"{path} is damaged: its checksum does not match.")


def _pieces(manifest: bytes, arrays: Iterable[np.ndarray]) -> Iterable[Any]:
    """Yield the file without its checksum, in order."""
    head = _PREFIX.pack(MAGIC, VERSION, len(manifest)) + manifest
    yield head + bytes(_pad_size(len(head)) - len(head))
    for array in arrays:
        raw = array.reshape(-1).view(np.uint8).data
        for begin in range(0, len(raw), _CHUNK_BYTES):
            yield raw[begin : begin + _CHUNK_BYTES]
        yield bytes(_pad_size(len(raw)) - len(raw))


def _pad_size(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _dtype(name: str) -> np.dtype:
    extension = getattr(ml_dtypes, name, None)
    if isinstance(extension, type) and issubclass(extension, np.generic):
        return np.dtype(extension)
    dtype = np.dtype(name)
    if dtype.kind not in "biufcmM" or dtype.subdtype is not None:
        raise TypeError(f"{name} is not a numeric dtype")
    return dtype


def _array(entry: Mapping[str, Any], begin: int, end: int, body: memoryview | None) -> np.ndarray:
    start, size, dtype = begin + count(entry["offset"]), count(entry["bytes"]), _dtype(entry["dtype"])
    shape = [count(each) for each in entry["shape"]]
    if start + size > end or math.prod(shape) * dtype.itemsize != size:
        raise ValueError("an array does not fit into the file")
    if body is None:
        return np.broadcast_to(np.zeros((), dtype), shape)
    return np.frombuffer(body, np.uint8, size, start).view(dtype).reshape(shape)
