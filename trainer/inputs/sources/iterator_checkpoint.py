"""The position of a `tf.data.Iterator` as bytes."""

import io
import os
import tempfile
import zipfile
from typing import Any

import tensorflow as tf

_FILES = ("iterator.index", "iterator.data-00000-of-00001")


def save_iterator(iterator: Any) -> bytes:
    """Return the checkpoint of a `tf.data.Iterator` as the bytes of a ZIP file."""
    with tempfile.TemporaryDirectory() as folder:
        tf.train.Checkpoint(iterator=iterator).write(os.path.join(folder, "iterator"))
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
            for name in _FILES:
                with open(os.path.join(folder, name), "rb") as file:
                    # Without a timestamp: the same bytes on all workers.
                    archive.writestr(zipfile.ZipInfo(name), file.read())
    return packed.getvalue()


def load_iterator(iterator: Any, packed: Any) -> None:
    """Go to the position of `save_iterator`; reject damaged bytes, and those of another pipeline."""
    data = packed if isinstance(packed, bytes) else bytes(bytearray(packed))
    with tempfile.TemporaryDirectory() as folder:
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                for name in _FILES:
                    with open(os.path.join(folder, name), "wb") as file:
                        file.write(archive.read(name))
            tf.train.Checkpoint(iterator=iterator).read(os.path.join(folder, "iterator"))
        except (tf.errors.OpError, zipfile.BadZipFile, KeyError) as error:
            raise ValueError(
                "The saved position of the input does not fit x: resume with the pipeline of the first run "
                f"({str(error).splitlines()[0]})."
            ) from error
