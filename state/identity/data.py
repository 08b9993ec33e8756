"""A checksum of the data of an input."""

import hashlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

MOST_BYTES = 2**26
"""This many bytes of each array are read: all of a small one, 64 blocks spread over a large one."""
_BLOCKS = 64


def checksum(structure: Any) -> str | None:
    """A checksum of the structure, dtypes, shapes and samples of a nest of arrays; None where samples cannot be sliced."""
    digest = hashlib.blake2b(digest_size=8)
    try:
        for path, leaf in keras.tree.flatten_with_path(structure):
            digest.update(f"{path}:".encode())
            for part in tf.nest.flatten(leaf, expand_composites=True):
                for piece in _pieces(part):
                    digest.update(piece)
    except (AttributeError, KeyError, TypeError, ValueError, tf.errors.OpError):
        return None  # a variant has no NumPy dtype
    return digest.hexdigest()


def _pieces(leaf: Any) -> Iterator[bytes]:
    """Yield the data for the checksum of one array."""
    if leaf is None:
        yield b"None;"
        return
    if not hasattr(leaf, "shape") or not hasattr(leaf, "__getitem__"):
        leaf = np.asarray(leaf)
    shape, dtype = tuple(leaf.shape), np.dtype(getattr(leaf.dtype, "as_numpy_dtype", leaf.dtype))
    yield f"{dtype.name}{shape};".encode()
    if not shape:
        yield _bytes(leaf)
        return
    samples = int(shape[0])
    sample_bytes = max(1, int(np.prod([int(size) for size in shape[1:]])) * max(dtype.itemsize, 1))
    if samples * sample_bytes <= MOST_BYTES:
        starts, count = range(0, samples, max(1, MOST_BYTES // sample_bytes)), samples
    else:
        count = max(1, MOST_BYTES // _BLOCKS // sample_bytes)
        starts = np.unique(np.linspace(0, samples - count, _BLOCKS).astype(int)).tolist()
    for start in starts:
        yield _bytes(leaf[start : start + count])


def _bytes(part: Any) -> bytes:
    array = np.asarray(part)
    if array.dtype.kind in "OSU":
        return b"".join(b"%d:%b" % (len(text), text) for text in map(_text, array.reshape(-1).tolist()))
    return array.tobytes()


def _text(item: Any) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode("utf-8", "surrogatepass")
