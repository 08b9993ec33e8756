"""A checksum of what an input holds, by which a backup knows its data again."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...callbacks.backup import random_state
from ...callbacks.backup.generators import found_generators
from ...callbacks.backup.json_encoding import encode
from ...callbacks.backup.settings import plain

MOST_BYTES = 2**26
"""So many bytes of each array are looked at: all of a small one, 64 blocks spread over a large one."""
_BLOCKS = 64


def checksum(structure: Any) -> str | None:
    """A checksum of the structure, dtypes, shapes and rows of a nest of arrays; None where rows cannot be sliced."""
    digest = hashlib.blake2b(digest_size=8)
    try:
        for path, leaf in keras.tree.flatten_with_path(structure):
            digest.update(f"{path}:".encode())
            for part in tf.nest.flatten(leaf, expand_composites=True):
                for piece in _pieces(part):
                    digest.update(piece)
    except (
        AttributeError,
        KeyError,
        TypeError,
        ValueError,
        tf.errors.OpError,
    ):  # a variant has no dtype of NumPy
        return None
    return digest.hexdigest()


def text_of_function(function: Any) -> str:
    """The name, compiled code and bound values of a function of Python, without its decorators."""
    return str(plain(inspect.unwrap(function)))


@contextlib.contextmanager
def notes_random_numbers(given: Any) -> Iterator[list[str]]:
    """A list that afterwards holds the generators from which the body has drawn: global ones and those of `given`.

    All threads share a global generator. One that has changed while another thread ran is listed only where the code of
    `given` names it; Keras' belongs to this thread.
    """
    found: list[str] = []
    held = found_generators({"its": given})
    before, others = _states(held), _other_threads()
    yield found
    after, alone = _states(held), _other_threads() == others
    changed = [name for name, state in after.items() if state != before.get(name)]
    found += [name for name in changed if alone or name == "keras.random" or name in held]


def drawn_ahead(kind: str, drawn_from: list[str]) -> str | None:
    """Why an input of this kind cannot be resumed exactly; None where its batches draw from no generator."""
    if not drawn_from:
        return None
    article = "an" if kind[0] in "aeiou" else "a"
    return (
        f"x is {article} {kind} whose batches draw random numbers from {' and '.join(drawn_from)}, and they are made ahead "
        "of the steps that use them: a resumed training cannot be exact; draw from a generator made for each batch, such as "
        "numpy.random.default_rng([seed, number])."
    )


def _states(held: Mapping[str, Any]) -> dict[str, bytes]:
    """A few bytes for the state of each generator, by its name in a sentence."""
    state = random_state.capture(held)
    named = {"numpy.random": state["numpy"], "random": state["python"], "keras.random": state.get("keras")}
    named["tf.random"] = [state.get("tensorflow"), state.get("tensorflow_seeds")]
    named.update({name: text for name, text in state.get("held", {}).items() if name not in named})
    return {name: _digest(part) for name, part in named.items()}


def _other_threads() -> dict[int, tuple[Any, int]]:
    """Where each other thread of Python is: its frame, and the instruction there."""
    frames = sys._current_frames()
    return {
        ident: (frame, frame.f_lasti) for ident, frame in frames.items() if ident != threading.get_ident()
    }


def _digest(state: Any) -> bytes:
    arrays: list[np.ndarray] = []
    digest = hashlib.blake2b(json.dumps(encode(state, arrays, "")).encode(), digest_size=16)
    for array in arrays:
        digest.update(array.tobytes())
    return digest.digest()


def _pieces(leaf: Any) -> Iterator[bytes]:
    """What the checksum of one array is made of."""
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
    rows = int(shape[0])
    row_bytes = max(1, int(np.prod([int(size) for size in shape[1:]])) * max(dtype.itemsize, 1))
    if rows * row_bytes <= MOST_BYTES:
        starts, count = range(0, rows, max(1, MOST_BYTES // row_bytes)), rows
    else:
        count = max(1, MOST_BYTES // _BLOCKS // row_bytes)
        starts = np.unique(np.linspace(0, rows - count, _BLOCKS).astype(int)).tolist()
    for start in starts:
        yield _bytes(leaf[start : start + count])


def _bytes(part: Any) -> bytes:
    array = np.asarray(part)
    if array.dtype.kind in "OSU":
        return b"".join(b"%d:%b" % (len(text), text) for text in map(_text, array.reshape(-1).tolist()))
    return array.tobytes()


def _text(item: Any) -> bytes:
    return item if isinstance(item, bytes) else str(item).encode("utf-8", "surrogatepass")
