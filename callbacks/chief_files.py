"""With several workers every worker calls the callbacks, and only the chief writes files."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import keras

# Keras' callbacks that write, and the attribute that says where.
_PLACES = {
    keras.callbacks.CSVLogger: "filename",
    keras.callbacks.ModelCheckpoint: "filepath",
    keras.callbacks.TensorBoard: "log_dir",
}


@contextlib.contextmanager
def only_chief_writes(callbacks: Iterable[Any], chief: bool) -> Iterator[None]:
    """On every worker but the chief, Keras' own callbacks write into a temporary folder.

    They are called there as on the chief, so that they read the same of the model and decide the same. Enter this
    before `set_model` of the callbacks. Our own callbacks know whether they are on the chief.
    """
    if chief:
        yield
        return
    with contextlib.ExitStack() as stack:
        for number, callback in enumerate(callbacks):
            for kind, place in _PLACES.items():
                if isinstance(callback, kind) and not hasattr(callback, "_writes_files"):
                    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="unisono-not-chief-"))
                    old = getattr(callback, place)
                    name = str(old).replace("\\", "/").rpartition("/")[2] or f"callback-{number}"
                    setattr(callback, place, f"{folder}/{name}")
                    stack.callback(setattr, callback, place, old)
        yield
