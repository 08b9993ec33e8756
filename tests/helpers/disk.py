"""A file system below one folder that fails at the n-th call, or loses unflushed data on a power cut."""

import builtins
import contextlib
import errno
import io
import os
import random
from pathlib import Path


class Disk:
    """Counts and records the calls that change files below `root`; call number `fail_at` fails with the errno `error`.

    A context manager. A failing write still writes half of its data.
    """

    def __init__(self, root, fail_at=None, error=errno.EIO):
        self.root, self.fail_at, self.error = os.path.realpath(root), fail_at, error
        self.log = []  # (operation, name, data): the changes in order
        self.calls = []  # the names of the calls in order

    def __enter__(self):
        self._stack = contextlib.ExitStack()
        for module, name in [
            (builtins, "open"),
            (io, "open"),
            (os, "fsync"),
            (os, "replace"),
            (os, "unlink"),
            (os, "link"),
        ]:
            original = getattr(module, name)
            setattr(module, name, self._wrapped(name, original))
            self._stack.callback(setattr, module, name, original)
        return self

    def __exit__(self, *_):
        self._stack.close()

    @property
    def failed(self):
        return self.fail_at is not None and len(self.calls) > self.fail_at

    def call(self, what):
        """Counts a call, and raises if it is number `fail_at`."""
        self.calls.append(what)
        if len(self.calls) - 1 == self.fail_at:
            raise OSError(self.error, os.strerror(self.error))

    def name(self, path):
        """The path relative to the root; None outside it."""
        path = os.path.join(os.path.realpath(os.path.dirname(path) or "."), os.path.basename(path))
        return os.path.relpath(path, self.root) if path.startswith(self.root + os.sep) else None

    def _wrapped(self, what, original):
        def open_(path, mode="r", *args, **kwargs):
            name = self.name(os.fspath(path)) if isinstance(path, str | os.PathLike) else None
            if name is None or ("r" in mode and "+" not in mode):
                return original(path, mode, *args, **kwargs)
            self.call("open")
            if "r" not in mode:
                self.log.append(("create", name, None))
            return File(self, name, path, mode.replace("b", "").replace("t", ""))

        def fsync(descriptor):
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            self.call("fsync")
            original(descriptor)
            whole = path == self.root
            self.log.append(("flush folder", None, None) if whole else ("flush", self.name(path), None))

        def two(source, target, **kwargs):
            self.call(what)
            original(source, target, **kwargs)
            self.log.append((what, self.name(os.fspath(target)), self.name(os.fspath(source))))

        def unlink(path, **kwargs):
            name = self.name(os.fspath(path))
            if name is not None and os.path.lexists(path):
                self.call("unlink")
            original(path, **kwargs)
            self.log.append(("unlink", name, None))

        return {"open": open_, "fsync": fsync, "replace": two, "link": two, "unlink": unlink}[what]


class File(io.FileIO):
    """An unbuffered file for writing: each write is one call."""

    def __init__(self, disk, name, path, mode):
        super().__init__(path, mode)
        self._disk, self._name = disk, name

    def write(self, data):
        data = data.encode() if isinstance(data, str) else bytes(data)
        place = self.tell()
        try:
            self._disk.call("write")
        except OSError:
            half = data[: len(data) // 2]
            super().write(half)
            self._disk.log.append(("write", self._name, (place, half)))
            raise
        self._disk.log.append(("write", self._name, (place, data)))
        return super().write(data)

    def close(self):
        if not self.closed:
            super().close()


def after_power_cut(log, folder, rng):
    """Creates in `folder` a state that a power cut after the calls in `log` may leave.

    Flushed data is there. Of the name changes since the folder was last flushed, any prefix may be there; of the data
    written since a file was last flushed, any prefix, or zeros instead.
    """
    files, names, pending = {}, {}, []  # file number -> [flushed, written]; name -> number
    now = {}  # the names as the program sees them
    for what, name, data in log:
        if what == "create":
            now[name] = len(files)
            files[now[name]] = [b"", b""]
            pending.append((what, name, now[name]))
        elif what == "write":
            place, new = data
            old = files[now[name]][1]
            files[now[name]][1] = old[:place] + new + old[place + len(new) :]
        elif what == "flush" and name in now:
            files[now[name]][0] = files[now[name]][1]
        elif what == "flush folder":
            names, pending = dict(now), []
        elif what in ("replace", "link") and data in now:
            now[name] = now[data]
            pending.append(("create", name, now[name]))
            if what == "replace":
                del now[data]
                pending[-1] = ("rename", name, data)
        elif what == "unlink" and name in now:
            del now[name]
            pending.append((what, name, None))
    for what, name, data in pending:
        if rng.random() < 0.5:
            continue
        if what == "create":
            names[name] = data
        elif what == "rename" and data in names:
            names[name] = names.pop(data)
        elif what == "unlink":
            names.pop(name, None)
    Path(folder).mkdir()
    for name, number in names.items():
        flushed, written = files[number]
        rest = written[len(flushed) :]
        kept = rest[: rng.randint(0, len(rest))]
        if rng.random() < 0.3:
            kept = bytes(len(kept))
        (Path(folder) / name).write_bytes(flushed + kept)


def rng_of(*seeds):
    """A random generator for each case."""
    return random.Random(repr(seeds))
