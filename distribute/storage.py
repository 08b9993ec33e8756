"""Checks every path from an argument, a command or a variable: local, or in a store such as a bucket.

A path in a store is a `upath.UPath` of universal_pathlib, which uses fsspec. TensorFlow writes event files itself.
"""

import os
import re
from pathlib import Path
from typing import Any

from .arguments import show
from .environment import without_password
from .objects import is_remote, without_secrets

# pathlib.Path turns gs://bucket into gs:/bucket. A single letter is a drive of Windows.
_LONGEST = 255  # bytes of a file's name, on the usual file systems
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(/?)")


def local_path(name: str, value: Any, optional: bool = False) -> Any:
    """Return `value` as a `pathlib.Path`, if it is a non-empty str or path object of a local or mounted file system.

    `file:///folder/file` is the local path `/folder/file`. None is returned if `optional`.
    Raise a ValueError for anything else.
    """
    if value is None and optional:
        return None
    text = path_text(name, value)
    if _URL.match(text) is None:
        return Path(text)
    if re.match(r"file:(//)?/[^/]", text, re.IGNORECASE):
        return Path("/" + text[len("file:") :].lstrip("/"))
    raise ValueError(
        f"`{name}` must be in a local or mounted file system, but this is a URL: mount it, or write to a local folder and "
        f"copy the files. Received: {show(text)}"
    )


def storage_path(name: str, value: Any, optional: bool = False) -> Any:
    """Do as `local_path`, but return a `upath.UPath` for a URL of another scheme. Do not access the store."""
    path: Any = value
    if not is_remote(path):
        found = None if value is None and optional else _URL.match(path_text(name, value))
        if found is None or found[1].lower() == "file":
            return local_path(name, value, optional)
        path = _store_path(name, found.string, *found.groups())
    if path.protocol in ("", "file", "local"):
        return local_path(name, path.path)
    scheme, _, rest = str(path).partition("://")
    if "//" in rest:  # as of a folder with a slash at its end, and "/backup": a store would keep both
        path = type(path)(f"{scheme}://{re.sub('/+', '/', rest)}", **path.storage_options)
    try:
        _ = path.fs
    except Exception as error:  # a package that is missing, or options that it does not take
        reason = f"{type(error).__name__}: {without_secrets(str(error), path)}"
        raise ValueError(f"`{name}`: the store of {path} cannot be opened ({reason}).") from None
    return path


def _store_path(name: str, text: str, scheme: str, slash: str) -> Any:
    """Return the UPath of a URL."""
    if not slash:
        raise ValueError(_report_lost_slash(name, text, scheme))
    if without_password(text) != text:
        raise ValueError(
            f"`{name}` must not contain a password: set the environment variables of the store, or pass a `upath.UPath`. "
            f"Received: {without_password(text)}"
        )
    try:
        from upath import UPath  # pyright: ignore[reportMissingImports]

        return UPath(text)
    except ImportError:
        raise ValueError(
            f"`{name}` is a URL, for which `universal-pathlib` and the package of its store are missing: install them, "
            f"such as `pip install universal-pathlib s3fs` for s3://, or mount the store. Received: {show(text)}"
        ) from None
    except ValueError:
        raise ValueError(
            f"`{name}` has the scheme {scheme}://, which fsspec does not know: use one of a store, such as s3://, or a "
            f"local path. Received: {show(text)}"
        ) from None


def is_store_url(value: Any) -> bool:
    """Return whether a path is in a store that TensorFlow does not write to itself."""
    if is_remote(value):
        return True
    found = _URL.match(os.fspath(value)) if isinstance(value, str | os.PathLike) else None
    if found is None or found[1].lower() == "file":
        return False
    return found[1] not in _tensorflow_schemes()


def tensorflow_path(name: str, value: Any) -> str:
    """Return `value` as text if TensorFlow can write there: a local path, or a URL with a TensorFlow file system.

    Raise a ValueError for anything else.
    """
    text = path_text(name, value)
    if (found := _URL.match(text)) is None:
        return text
    if not found[2]:
        raise ValueError(_report_lost_slash(name, text, found[1]))
    if found[1] not in (known := _tensorflow_schemes()):
        raise ValueError(
            f"`{name}` has a scheme that TensorFlow has no file system for: install tensorflow-io and import it, or use a "
            f"local path or one of {', '.join(sorted(known))}. Received: {show(text)}"
        )
    return text


def _tensorflow_schemes() -> set[str]:
    import tensorflow as tf  # commands that need no TensorFlow import this module

    return {scheme.rstrip(":/") for scheme in tf.io.gfile.get_registered_schemes()} - {""}


def _report_lost_slash(name: str, text: str, scheme: str) -> str:
    return (
        f"`{name}` is a URL that lost a slash, as it does in a `pathlib.Path`: pass a string such as "
        f'"{scheme}://...". Received: {show(text)}'
    )


def is_url(value: Any) -> bool:
    """Return whether a path is a URL with a scheme, and thus no local path."""
    return _URL.match(os.fspath(value)) is not None


def path_text(name: str, value: Any) -> str:
    """Return `value` as text if it is a path, a non-empty str or path object. Raise as `local_path`."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    if not text or not isinstance(text, str) or "\0" in text:
        raise ValueError(f"`{name}` must be a path, as a str or a pathlib.Path. Received: {show(value)}")
    if any(len(os.fsencode(part)) > _LONGEST for part in text.split("/")):
        raise ValueError(f"`{name}` contains a name of more than {_LONGEST} bytes. Received: {show(text)}")
    return text
