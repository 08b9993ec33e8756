"""A local folder for callbacks that write to a store, such as a bucket, files that grow or that TensorFlow writes."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import uuid
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..distribute.objects import download, is_remote, names_in, remove_file, upload
from ..distribute.storage import storage_path
from ..distribute.workers.ticker import Ticker
from ..state.trained_model import FitState
from .callback import ours
from .safe_file import SaveError, explain_going_on

_PAUSE = 30.0  # seconds between uploads while training goes on


class Spool:
    """Owns the folder, and, in its block, a thread that uploads what changes in it.

    `place` the paths of callbacks in the block, and leave it after their last write: what has changed by then is uploaded.
    A failed upload is a warning and retried; at the end it is a SaveError. Training waits only for the end.
    """

    def __init__(self) -> None:
        self._folder: str | None = None
        self._entered = False
        self._roots: list[tuple[Path, Any]] = []  # a local folder, and the one in the store
        self._uploaded: dict[Path, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._ticker: Ticker | None = None
        self._has_warned = False

    def place(self, argument: str, url: Any, folder: bool) -> str:
        """Return the local path to write to instead of `url`; files of that name are downloaded, for a resumed run."""
        remote = storage_path(argument, url)
        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="unisono-spool-")
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            if self._entered:
                self._ticker = Ticker("spool", self._tick, _PAUSE)
                self._ticker.start()
        local = Path(self._folder, str(len(self._roots)))
        local.mkdir()
        base = remote if folder else find_fixed_folder(remote)
        for name in check_writable(argument, base, lists=not folder):
            if Path(name).stem == remote.stem:
                file = download(base / name, local, may_be_absent=False)
                self._uploaded[file] = _sign(file)
        self._roots.append((local, base))
        return str(local) if folder else f"{local}/{name_below(base, remote)}"

    def holds(self, place: Any) -> bool:
        """Return whether a local path is in the folder."""
        return any(local == Path(place) for local, _ in self._roots)

    def upload(self) -> None:
        """Upload what has changed, and remove what was removed. Context: any thread."""
        with self._lock:
            for local, remote in self._roots:
                found = {f for f in local.rglob("*") if f.is_file() and not f.name.startswith(".")}
                for file in sorted(found):
                    sign = _sign(file)
                    if self._uploaded.get(file) != sign:
                        with tempfile.TemporaryDirectory(prefix="unisono-") as now:  # the file may grow
                            copy = Path(shutil.copyfile(file, Path(now, file.name)))
                            upload(copy, remote / file.relative_to(local).as_posix())
                        self._uploaded[file] = sign
                for file in [each for each in self._uploaded if local in each.parents and each not in found]:
                    with contextlib.suppress(FileNotFoundError):  # of a first attempt whose answer was lost
                        remove_file(remote / file.relative_to(local).as_posix())
                    del self._uploaded[file]

    def __enter__(self) -> Spool:
        self._entered = True
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if self._ticker is None:
            return
        self._ticker.stop()
        try:
            self.upload()
        except OSError as error:
            if kind is None:
                raise
            warnings.warn(str(error), stacklevel=2)

    def _tick(self) -> bool:
        try:
            self.upload()
        except OSError as error:
            if not self._has_warned:
                warnings.warn(explain_going_on(error, "the upload is tried again"))
            self._has_warned = True
        return True


def after_uploads(fit_state: FitState, job: Callable[[], None]) -> Callable[[], None]:
    """Return `job` of a backup, delayed until the store has what the backup refers to: logs and checkpoints."""
    pending = [each.pending_upload() for each in ours(fit_state.callbacks)]

    def run() -> None:
        for other in filter(None, pending):
            other.exception()  # its own callback raises it
        if fit_state.spool is not None:
            fit_state.spool.upload()
        job()

    return run


def find_fixed_folder(path: Any) -> Any:
    """Return the folder of a path such as `runs/{epoch:03d}.keras`, up to its first placeholder."""
    folder = path.parent
    while "{" in str(folder):
        folder = folder.parent
    return folder


def name_below(folder: Any, path: Any) -> str:
    """Return the name of a path relative to a folder, with "/"."""
    if is_remote(path):
        return path.path.removeprefix(folder.path).lstrip("/")
    return path.relative_to(folder).as_posix()


def check_writable(argument: str, folder: Any, lists: bool = False) -> list[str]:
    """Raise a SaveError that names the argument, unless a folder of a store lets an object be written and removed.

    If it `lists` them, return the names in the folder.
    """
    probe = folder / f".unisono-{uuid.uuid4().hex}"
    try:
        with tempfile.NamedTemporaryFile() as empty:
            upload(Path(empty.name), probe)
        names = names_in(folder, contains=probe.name) if lists else []
        remove_file(probe, is_there=True)
    except SaveError as error:
        raise SaveError(error.errno, f"`{argument.strip('`')}`: {error.strerror}") from error
    return names


def _sign(file: Path) -> tuple[int, int]:
    status = file.stat()
    return status.st_mtime_ns, status.st_size
