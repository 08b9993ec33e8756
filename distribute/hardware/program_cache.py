"""Programs that XLA compiled, kept in a folder: a process loads what an earlier one on this machine has compiled.

TensorFlow's own cache loads a damaged entry, with wrong numbers or an error, and fails where it cannot write. So it only
sees the memory of the process: entries are copied there, checked, before a first call, and new ones to the folder after it.
"""

import atexit
import contextlib
import hashlib
import os
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from ...compat.versions import find_version
from ...compat.xla_flags import PROGRAMS, TUNED, add_flags, flags_are_read, hide_log, restore_flags
from .machine import describe_cards, describe_cpu, describe_flags, size_of_tensorflow

CACHE = "UNISONO_CACHE"
LATE = "TensorFlow's devices were in use before `import unisono`: import it first"
_MOST_BYTES, _LARGEST = 4 << 30, 1 << 30  # of all entries, and of one
_DIGEST = 32  # bytes, before the entry in its file


class Counts(NamedTuple):
    """Of this process: the first calls under XLA, and the programs that were loaded before them and made in them."""

    calls: int = 0
    loaded: int = 0
    made: int = 0


class ProgramCache:
    """The cache of a process. Owns the entries that TensorFlow has in memory."""

    def __init__(self) -> None:
        self.why_off = "`unisono` was not imported"  # "": the cache is on
        self.counts = Counts()
        self.folder: Path | None = None  # of this machine
        self._flagged = False  # whether our flags are in the environment
        self._place: Path | None = None  # for what is compiled now
        self._loaded: set[tuple[str, str, int]] = set()  # kind, name and size of entries in memory
        self._lock, self._active = threading.RLock(), 0
        self._warned = False

    def begin(self, environ: MutableMapping[str, str] = os.environ) -> None:
        """Add the flags, for `import unisono`."""
        self.folder = machine_folder(environ)
        if self.folder is None:
            self.why_off = f'{CACHE} is ""' if environ.get(CACHE) == "" else "there is no folder for it"
        elif flags_are_read():
            self.why_off = LATE
        else:
            self.why_off = add_flags(environ, gpus=bool(describe_cards()))
            self._flagged = not self.why_off
            atexit.register(self._keep_new)

    def release_flags(self, environ: MutableMapping[str, str] = os.environ, compiles: bool = True) -> None:
        """Give the user's flags back once TensorFlow has read ours, so that child processes start with their own.

        `compiles`: False in a process that compiles nothing, and need not wait for that.
        """
        if self._flagged and (not compiles or flags_are_read()):
            self._flagged = False
            if not restore_flags(environ):
                self.why_off = "the flags of XLA were replaced after `import unisono`"

    def reuse_for(self, model: Any, phase: str) -> contextlib.AbstractContextManager[None]:
        """Do as `reuse` for the steps of a model, whose program depends on the shapes of its weights."""
        shapes = [(each.shape, each.dtype) for each in model.variables]
        return self.reuse(phase, model.distribute_strategy.num_replicas_in_sync, shapes)

    @contextlib.contextmanager
    def reuse(self, *label: Any) -> Iterator[None]:
        """Load what was compiled before for `label`, and keep what is compiled in the block. Context: host, a first call."""
        self.release_flags()
        self.counts = self.counts._replace(calls=self.counts.calls + 1)
        if self.why_off or self.folder is None or not self._make_private(self.folder):
            yield
            return
        with self._lock:
            self._keep_new()
            self._place = self.folder / _digest(repr((label, _settings())).encode()).hex()[:16]
            loaded, self._active = self._load(self._place), self._active + 1
        self.counts = self.counts._replace(loaded=self.counts.loaded + loaded)
        try:
            with hide_log() if loaded else contextlib.nullcontext():
                yield
        finally:
            with self._lock:
                self._active -= 1
                self._keep_new()

    def all_loaded_since(self, before: Counts) -> bool:
        """Return whether every program that was compiled since then came from the cache."""
        with self._lock:
            self._keep_new()
        return self.counts.loaded > before.loaded and self.counts.made == before.made

    def _load(self, place: Path) -> int:
        """Copy the whole entries of a folder to the memory that TensorFlow reads; return the number of programs."""
        import tensorflow as tf

        for kind, folder in _folders(place).items():
            with contextlib.suppress(OSError):
                for file in folder.iterdir():
                    if (content := read_entry(file)) is not None:
                        tf.io.gfile.makedirs(kind)
                        with tf.io.gfile.GFile(f"{kind}/{file.name}", "wb") as stream:
                            stream.write(content)
                        self._loaded.add((kind, file.name, len(content)))
        return sum(kind == PROGRAMS for kind, *_ in self._loaded)

    def _keep_new(self) -> None:
        """Write to the folder what was compiled since the last call, and free the memory that entries take."""
        if self._active or self._place is None:  # a first call in another thread may read them
            return
        new = [entry for entry in _take_entries() if (*entry[:2], len(entry[2])) not in self._loaded]
        self._loaded.clear()
        self.counts = self.counts._replace(made=self.counts.made + sum(kind == PROGRAMS for kind, *_ in new))
        try:
            for kind, name, content in new:
                write_entry(_folders(self._place)[kind] / name, content)
        except OSError as error:
            self._warn(_explain(error))
        if new:
            _remove_oldest(self._place.parents[1])

    def _make_private(self, folder: Path) -> bool:
        """Return whether only this user can write the folders, which are created; who can, runs code in this process."""
        problem = ""
        try:
            for each in (folder.parent, folder):
                each.mkdir(mode=0o700, parents=True, exist_ok=True)
                problem = problem or why_refused(each)
        except OSError as error:
            problem = _explain(error)
        if problem:
            self._warn(problem)
        return not problem

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(text, stacklevel=2)


PROGRAM_CACHE = ProgramCache()


def machine_folder(environ: MutableMapping[str, str]) -> Path | None:
    """Return the folder for code of machines like this one; None: switched off, no home, or the CPU is not known."""
    named, cpu = environ.get(CACHE), describe_cpu()
    if named == "" or not cpu:
        return None
    users = environ.get("XDG_CACHE_HOME", "")
    try:
        default = Path(users if os.path.isabs(users) else "~/.cache", "unisono")
        root = Path(named or default).expanduser().absolute()
    except (RuntimeError, OSError):  # no home, or no working directory
        return None
    version = find_version("tensorflow")
    facts = repr([version, size_of_tensorflow(), cpu, describe_cards(), describe_flags(environ)])
    return root / f"tensorflow-{version}-{hashlib.blake2b(facts.encode(), digest_size=8).hexdigest()}"


def _settings() -> Any:
    """Return the settings of TensorFlow that change the code of a program, but not its name in TensorFlow's cache."""
    import tensorflow as tf

    from ...compat.tensorflow_graphs.graphs import operations_are_deterministic

    halved = tf.config.experimental.tensor_float_32_execution_enabled()
    return operations_are_deterministic(), halved, tf.config.threading.get_intra_op_parallelism_threads()


def _folders(place: Path) -> dict[str, Path]:
    """Return where entries of each kind are: tuned kernels serve all programs of a machine."""
    return {PROGRAMS: place, TUNED: place.parent / "tuned"}


def _take_entries() -> Iterator[tuple[str, str, bytes]]:
    """Yield kind, name and content of each entry in memory, and delete it there."""
    import tensorflow as tf

    files = tf.io.gfile
    for kind in (PROGRAMS, TUNED):
        for name in files.listdir(kind) if files.isdir(kind) else ():
            if name.endswith((".pb", ".textproto")):  # others are being written
                with files.GFile(path := f"{kind}/{name}", "rb") as stream:
                    content = stream.read()
                files.remove(path)
                yield kind, name, content


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST).digest()


def read_entry(file: Path) -> bytes | None:
    """Return the entry in a file; None if it is not whole, or of another name."""
    with contextlib.suppress(OSError):
        if not file.name.startswith(".") and file.is_file() and file.stat().st_size < _LARGEST:
            content = file.read_bytes()
            if content[:_DIGEST] == _digest(file.name.encode() + content[_DIGEST:]):
                os.utime(file)  # the least recently used ones are removed
                return content[_DIGEST:]
    return None


def write_entry(file: Path, content: bytes) -> None:
    """Write an entry that is complete or absent."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    partial = file.with_name(f".{uuid.uuid4().hex}")
    try:
        partial.write_bytes(_digest(file.name.encode() + content) + content)
        partial.replace(file)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def list_entries(root: Path) -> list[tuple[float, int, Path]]:
    """Return time, size and path of each file in the folder of all machines, the oldest first."""
    found = []
    for path in root.glob("*/*/*"):
        with contextlib.suppress(OSError):
            found.append((path.stat().st_mtime, path.stat().st_size, path))
    return sorted(found)


def _remove_oldest(root: Path) -> None:
    """Delete the least recently used entries beyond 4 GiB, and what processes that were killed have left."""
    found, hour = list_entries(root), time.time() - 3600
    total = sum(size for _, size, _ in found)
    for modified, size, path in found:
        if total > _MOST_BYTES or (path.name.startswith(".") and modified < hour):
            total -= size
            with contextlib.suppress(OSError):
                path.unlink()


def why_refused(root: Path) -> str:
    """Return why a folder is not used; "" if it can be, or cannot be read, as if it does not exist yet."""
    with contextlib.suppress(OSError):
        state = root.stat()
        if state.st_uid != os.geteuid() or state.st_mode & 0o022:
            return (
                f"{root} is not used for compiled programs, because other users can write it: run `chmod 700` on it as "
                f'its owner, or set {CACHE} to another folder, or to "" for none.'
            )
    return ""


def _explain(error: OSError) -> str:
    return f"Compiled programs are not kept, because their folder cannot be written ({error})."
