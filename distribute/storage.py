"""Checks every path from an argument, a command or a variable, before files are written.

Unisono renames, truncates, maps and flushes files, which buckets do not support. TensorFlow writes event files itself.
"""

from __future__ import annotations

import errno
import io
import os
import re
import stat
from pathlib import Path
from typing import Any

from .arguments import shown

# pathlib.Path turns gs://bucket into gs:/bucket. A single letter is a drive of Windows.
_LONGEST = 255  # bytes of a file's name, on the usual file systems
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(/?)")


def local_path(name: str, value: Any, optional: bool = False) -> Any:
    """`value` as a `pathlib.Path`, if it is a str or a path object, not empty, of a local or mounted file system.

    `file:///folder/file` is the local path `/folder/file`. None is returned if `optional`.
    Raises a ValueError for anything else.
    """
    if value is None and optional:
        return None
    text = path_text(name, value)
    found = _URL.match(text)
    if found is None:
        return Path(text)
    if found[1].lower() == "file" and re.match(r"file:(//)?/[^/]", text, re.IGNORECASE):
        return Path("/" + text[len("file:") :].lstrip("/"))
    raise ValueError(
        f"`{name}` must be in a local or mounted file system, and this is a URL: mount it, or write to a local folder and "
        f"copy the files. Received: {shown(text)}"
    )


def tensorflow_path(name: str, value: Any) -> str:
    """`value` as text, if TensorFlow can write there: a local path, or a URL whose scheme has a TensorFlow file system.

    Raises a ValueError for anything else.
    """
    text = path_text(name, value)
    found = _URL.match(text)
    if found is None:
        return text
    if not found[2]:
        raise ValueError(
            f"`{name}` is a URL that has lost a slash, as in a `pathlib.Path`: give it as a text such as "
            f'"{found[1]}://...". Received: {shown(text)}'
        )
    import tensorflow as tf  # commands that need no TensorFlow import this module

    known = {scheme.rstrip(":/") for scheme in tf.io.gfile.get_registered_schemes()} - {""}
    if found[1] not in known:
        raise ValueError(
            f"`{name}` has a scheme that TensorFlow has no file system for: install tensorflow-io and import it, or use a "
            f"local path or one of {', '.join(sorted(known))}. Received: {shown(text)}"
        )
    return text


def is_url(value: Any) -> bool:
    """Whether a path is a URL with a scheme, and thus no local path."""
    return _URL.match(os.fspath(value)) is not None


def path_text(name: str, value: Any) -> str:
    """`value` as text, if it is a path: a str or a path object, not empty. Raises as `local_path`."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not text or not isinstance(text, str) or "\0" in text:
        raise ValueError(f"`{name}` must be a path, as a str or a pathlib.Path. Received: {shown(value)}")
    if any(len(os.fsencode(part)) > _LONGEST for part in text.split("/")):
        raise ValueError(
            f"`{name}` has a name of more than {_LONGEST} bytes: give a shorter one. Received: {shown(text)}"
        )
    return text


def open_plain(path: str | Path) -> io.BufferedReader:
    """Opens a plain file for reading; an OSError for FIFOs, devices and folders, without waiting for them."""
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
