"""A store in a folder, with the semantics of a bucket: objects appear whole, and survive the process that wrote them."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import fsspec
from upath.implementations.memory import MemoryPath
from upath.registry import register_implementation


class Bucket(fsspec.AbstractFileSystem):
    """`bucket://name/...`, below the folder ROOT."""

    protocol = "bucket"
    cachable = False
    root = ""

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return "/" + str(path).removeprefix("bucket://").strip("/")

    def _file(self, path: Any) -> Path:
        return Path(self.root + self._strip_protocol(path))

    def ls(self, path: Any, detail: bool = True, **kwargs: Any) -> list[Any]:
        """The objects below a name, and the names that end in one."""
        names = [f"{self._strip_protocol(path)}/{name}" for name in os.listdir(self._file(path))]
        names = [name for name in names if not name.endswith(".partial")]
        return [self.info(name) for name in names] if detail else names

    def info(self, path: Any, **kwargs: Any) -> dict[str, Any]:
        """The size of an object."""
        kind = "directory" if (file := self._file(path)).is_dir() else "file"
        return {"name": self._strip_protocol(path), "type": kind, "size": file.stat().st_size}

    def cat_file(self, path: Any, start: int = 0, end: int | None = None, **kwargs: Any) -> bytes:
        """A part of an object."""
        return self._file(path).read_bytes()[start:end]

    def put_file(self, lpath: str, rpath: Any, mode: str = "overwrite", **kwargs: Any) -> None:
        """Writes an object whole, or, to `create` it, only where there is none."""
        (file := self._file(rpath)).parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{uuid.uuid4().hex}.partial")
        partial.write_bytes(Path(lpath).read_bytes())
        (os.link if mode == "create" else os.replace)(partial, file)
        partial.unlink(missing_ok=True)

    def rm_file(self, path: Any) -> None:
        """Removes an object."""
        self._file(path).unlink()


def register(folder: Path) -> str:
    """Puts the bucket into a folder; returns its URL."""
    Bucket.root = str(folder)
    fsspec.register_implementation("bucket", Bucket, clobber=True)
    register_implementation("bucket", MemoryPath, clobber=True)
    return "bucket://objects"
