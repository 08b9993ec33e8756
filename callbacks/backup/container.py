"""One file for a tree of values and arrays, readable with a JSON parser and `numpy.frombuffer`. No pickle.

The layout, all numbers little-endian:

| bytes | what |
|---|---|
| 0 to 7 | `UNISONO` and a line feed |
| 8 to 11 | format version, uint32 |
| 12 to 19 | length of the manifest in bytes, uint64 |
| then | the manifest: JSON in UTF-8 |
| then | zeros up to a multiple of 64: here the data begins |
| then | the raw bytes of each array, each at a multiple of 64 from the beginning of the data |
| last 32 | BLAKE2b (32-byte digest) of everything before |

The manifest is `{"summary": ..., "content": ..., "arrays": [{"dtype", "shape", "offset", "bytes"}, ...],
"data_bytes": n}`. In `content` a JSON object whose only key begins with `$` represents what JSON cannot express:
`$array` and `$scalar` (number of the array), `$bytes` (the same, as bytes), `$tuple`, `$dict` (pairs, for keys
that are not strings), `$float` (`nan`, `inf`, `-inf`), `$objects` (an array of strings or bytes: shape and items).

The checksum is at the same place in every version, so that damage can be distinguished from a newer version.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

MAGIC = b"UNISONO\n"
VERSION = 1
ALIGNMENT = 64
DIGEST_BYTES = 32
_PREFIX = struct.Struct("<8sIQ")
_CHUNK_BYTES = 1 << 22


class DamagedFileError(OSError):
    """The bytes of a file are not those that were written."""


class NewerFormatError(RuntimeError):
    """A good file in a format that this version does not know."""


def write(stream: BinaryIO, content: Any, summary: Mapping[str, Any]) -> None:
    """Writes `content` and its `summary`, JSON values that a listing shows without reading the arrays.

    Raises:
        TypeError: `content` is more than a nest of dicts, lists, tuples, None, bools, numbers, strings, bytes and NumPy
            arrays or scalars; the message says where.
    """
    arrays: list[np.ndarray] = []
    tree = _encode(content, arrays, "")
    table, offset = [], 0
    for array in arrays:
        table.append(
            {"dtype": _dtype_name(array.dtype), "shape": array.shape, "offset": offset, "bytes": array.nbytes}
        )
        offset += _padded(array.nbytes)
    manifest = {"summary": summary, "content": tree, "arrays": table, "data_bytes": offset}
    text = json.dumps(manifest, allow_nan=False, separators=(",", ":"))
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for piece in _pieces(text.encode(), arrays):
        digest.update(piece)
        stream.write(piece)
    stream.write(digest.digest())


def read(path: str | Path) -> tuple[dict[str, Any], Any]:
    """`(summary, content)` of a file, every byte of it checked. Arrays are views of one read-only buffer.

    Raises DamagedFileError, NewerFormatError, or OSError where the file cannot be read.
    """
    return parse(Path(path).read_bytes(), path)


def parse(data: bytes, path: Any = "The data") -> tuple[dict[str, Any], Any]:
    """`read` for bytes in memory; `path` is the name in messages."""
    body = memoryview(data)[:-DIGEST_BYTES]
    _check(path, len(data), [body], data[-DIGEST_BYTES:])
    manifest, begin = _parse_manifest(path, body)
    arrays = [_array(body, begin, entry) for entry in manifest["arrays"]]
    return manifest["summary"], _decode(manifest["content"], arrays)


def read_summary(path: str | Path) -> dict[str, Any]:
    """Checks every byte of the file, in little memory, and returns its summary. Raises as `read` does."""
    size = Path(path).stat().st_size
    with open(path, "rb") as stream:
        stream.seek(max(0, size - DIGEST_BYTES))
        expected = stream.read()
        stream.seek(0)
        sizes = range(size - DIGEST_BYTES, 0, -_CHUNK_BYTES)
        _check(path, size, (stream.read(min(_CHUNK_BYTES, left)) for left in sizes), expected)
        stream.seek(0)
        prefix = stream.read(_PREFIX.size)
        manifest, _ = _parse_manifest(path, memoryview(prefix + stream.read(_manifest_bytes(path, prefix))))
    return manifest["summary"]


def _check(path: Any, size: int, pieces: Iterable[Any], expected: bytes) -> None:
    """Refuses a file whose checksum is not that of the `pieces` before it."""
    if size < _PREFIX.size + DIGEST_BYTES:
        raise DamagedFileError(f"{path} is damaged: it has {size} bytes, too few for a header.")
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for piece in pieces:
        digest.update(piece)
    if digest.digest() != expected:
        raise DamagedFileError(f"{path} is damaged: its checksum does not match its {size} bytes.")


def _pieces(manifest: bytes, arrays: Iterable[np.ndarray]) -> Iterable[Any]:
    """The file without its checksum, in order."""
    head = _PREFIX.pack(MAGIC, VERSION, len(manifest)) + manifest
    yield head + bytes(_padded(len(head)) - len(head))
    for array in arrays:
        raw = memoryview(array.reshape(-1).view(np.uint8).data)
        for begin in range(0, len(raw), _CHUNK_BYTES):
            yield raw[begin : begin + _CHUNK_BYTES]
        yield bytes(_padded(len(raw)) - len(raw))


def _manifest_bytes(path: Any, data: Any) -> int:
    """Length of the manifest; refuses other files and newer formats."""
    magic, version, length = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise DamagedFileError(f"{path} is not a backup of unisono: it begins with {bytes(magic)!r}.")
    if version > VERSION:
        raise NewerFormatError(
            f"{path} has format version {version}; this version of unisono reads versions up to {VERSION}. "
            "Install the newer unisono, or move the file away to resume from an older backup."
        )
    return length


def _parse_manifest(path: Any, data: memoryview) -> tuple[dict[str, Any], int]:
    """`(manifest, where the data begins)`."""
    end = _PREFIX.size + _manifest_bytes(path, data)
    return json.loads(bytes(data[_PREFIX.size : end])), _padded(end)


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _dtype_name(dtype: np.dtype) -> str:
    """`<f4`, `|b1`, ...; for types that NumPy knows only through an extension, their name: `bfloat16`."""
    return dtype.name if dtype.kind == "V" or dtype.isbuiltin != 1 else dtype.newbyteorder("<").str


def _dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


def _array(body: memoryview, begin: int, entry: Mapping[str, Any]) -> np.ndarray:
    start = begin + entry["offset"]
    raw = np.frombuffer(body, np.uint8, entry["bytes"], start)
    return raw.view(_dtype(entry["dtype"])).reshape(entry["shape"])


def _encode(value: Any, arrays: list[np.ndarray], where: str) -> Any:
    """`value` as JSON; arrays are appended to `arrays`."""
    if value is None or isinstance(value, bool | str) or type(value) is int:
        return value
    if isinstance(value, float) and not isinstance(value, np.generic):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, Mapping):
        return _encode_mapping(value, arrays, where)
    if isinstance(value, list | tuple):
        items = [_encode(item, arrays, f"{where}[{i}]") for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"$tuple": items}
    if isinstance(value, bytes | bytearray):
        return {"$bytes": _add(np.frombuffer(bytes(value), np.uint8), arrays)}
    if isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array__"):
        return _encode_array(value, arrays, where)
    raise TypeError(
        f"{where.lstrip('.') or 'The state'} is a {type(value).__name__} ({value!r:.80}); a state may contain None, "
        "bool, int, float, str, bytes, list, tuple, dict and NumPy arrays."
    )


def _encode_mapping(value: Mapping[Any, Any], arrays: list[np.ndarray], where: str) -> Any:
    if all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: _encode(item, arrays, f"{where}.{key}") for key, item in value.items()}
    pairs = [
        [_encode(key, arrays, f"{where} key"), _encode(v, arrays, f"{where}.{key}")]
        for key, v in value.items()
    ]
    return {"$dict": pairs}


def _encode_array(value: Any, arrays: list[np.ndarray], where: str) -> Any:
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        items = [_encode(item, arrays, where) for item in array.reshape(-1).tolist()]
        return {"$objects": {"shape": list(array.shape), "items": items}}
    if array.dtype.names:
        raise TypeError(
            f"{where.lstrip('.')} is a structured array ({array.dtype}); save each field by itself."
        )
    return {"$scalar" if isinstance(value, np.generic) else "$array": _add(array, arrays)}


def _add(array: np.ndarray, arrays: list[np.ndarray]) -> int:
    if array.dtype.isbuiltin == 1 or array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
    shape = array.shape
    arrays.append(np.ascontiguousarray(array).reshape(shape))
    return len(arrays) - 1


def _decode(value: Any, arrays: list[np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        (key, item), *_ = value.items()
        if key in _DECODERS:
            return _DECODERS[key](item, arrays)
    return {key: _decode(item, arrays) for key, item in value.items()}


def _decode_objects(value: dict[str, Any], arrays: list[np.ndarray]) -> np.ndarray:
    result = np.empty(len(value["items"]), object)
    result[:] = [_decode(item, arrays) for item in value["items"]]
    return result.reshape(value["shape"])


_DECODERS = {
    "$array": lambda i, arrays: arrays[i],
    "$scalar": lambda i, arrays: arrays[i][()],
    "$bytes": lambda i, arrays: arrays[i].tobytes(),
    "$float": lambda text, arrays: float(text),
    "$tuple": lambda items, arrays: tuple(_decode(item, arrays) for item in items),
    "$dict": lambda pairs, arrays: {_decode(k, arrays): _decode(v, arrays) for k, v in pairs},
    "$objects": _decode_objects,
}
