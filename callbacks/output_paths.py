"""Checks the paths of callbacks before the first step; only the chief writes to them, except for each worker's profiles."""

import contextlib
import errno
import os
import string
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from ..compat.keras_private.callbacks import begin_new_files, no_hook
from ..distribute.arguments import show
from ..distribute.environment import ClusterError
from ..distribute.objects import is_remote
from ..distribute.storage import is_store_url, is_url, local_path, path_text, tensorflow_path
from ..distribute.workers.agreement import spans_workers
from ..distribute.workers.cluster import read_cluster, worker_index
from ..distribute.workers.places import find_place, warn_of_unknown_size
from .backup.backup_and_restore import BackupAndRestore
from .callback import ours
from .monitoring.profiler import Profiler
from .monitors import LOGGERS
from .safe_file import SaveError
from .spool import Spool, find_fixed_folder

# Keras' class -> (the argument and attribute, whether it is a folder); ours have `output_paths`
_OUTPUTS: dict[type, tuple[str, bool]] = {
    keras.callbacks.BackupAndRestore: ("backup_dir", True),
    keras.callbacks.CSVLogger: ("filename", False),
    keras.callbacks.OrbaxCheckpoint: ("directory", True),
    keras.callbacks.ModelCheckpoint: ("filepath", False),
    keras.callbacks.TensorBoard: ("log_dir", True),
}
# Keras' callbacks that run on every worker, so that all decide the same, and must not write on all.
_ON_ALL_WORKERS = (keras.callbacks.CSVLogger, keras.callbacks.ModelCheckpoint, keras.callbacks.TensorBoard)


def check_output_paths(callbacks: Sequence[Any], logs: Callable[[], set[str]] | None) -> None:
    """Check that callbacks of a fit can write to their paths. `logs` returns the names of its logs, if they are known.

    Raise a SaveError for a path that cannot be created, a ValueError for no path or a placeholder for an unknown log.
    """
    backed_up = any(isinstance(each, BackupAndRestore) for each in callbacks)
    for callback in callbacks:
        for kind, name, folder, place in _outputs_of(callback):
            argument = f"`{name}` of `{kind.__name__}`"
            check_template(argument, place)
            if isinstance(callback, keras.callbacks.ModelCheckpoint) and logs is not None:
                _check_logs(argument, str(place), logs)
            if not is_store_url(place):
                if backed_up and isinstance(callback, keras.callbacks.CSVLogger):  # a resume truncates it
                    local_path(argument.strip("`"), place)
                check_output_path(argument, os.fspath(place), folder)
            elif isinstance(callback, keras.callbacks.BackupAndRestore | keras.callbacks.OrbaxCheckpoint):
                raise ValueError(
                    f"{argument} is in a store, from which Keras' callback cannot restore: use "
                    "unisono.callbacks.BackupAndRestore."
                )


def _outputs_of(callback: Any) -> list[tuple[type, str, bool, Any]]:
    """Return the class, the attribute, whether it is a folder, and its value, of each path that a callback writes to."""
    declared = [(type(each), output) for each in ours([callback]) for output in each.output_paths.items()]
    known = [(kind, output) for kind, output in _OUTPUTS.items() if isinstance(callback, kind)]
    found = [(kind, name, folder, getattr(callback, name, None)) for kind, (name, folder) in declared + known]
    return [each for each in found if each[-1] is not None]


def check_launched_alone(callbacks: Iterable[Any], strategy: tf.distribute.Strategy) -> None:
    """Warn if a launcher's processes each train a separate model; raise a ClusterError if callbacks would save all."""
    if spans_workers(strategy):
        return
    try:
        place, cluster = find_place(), read_cluster()
    except ClusterError as error:  # that a strategy of several workers would raise
        warnings.warn(f"This process trains alone. {error}", stacklevel=2)
        return
    if place is None:
        if cluster is not None and cluster.trains_together:
            warnings.warn(
                f"TF_CONFIG makes this process worker {cluster.worker_index} of {cluster.num_workers}, but each worker "
                "trains a separate model: create the model under unisono.distribute.auto_strategy(); set TF_CONFIG={} "
                "if the models are meant to be independent.",
                stacklevel=2,
            )
        return
    if place.size is None:
        warn_of_unknown_size(place)
        return
    writing = [type(each).__name__ for each in callbacks if _outputs_of(each)]
    if writing and not place.addresses:
        raise ClusterError(
            f"`callbacks` of several processes would overwrite each other's files ({', '.join(writing)}): {place}"
        )
    warnings.warn(str(place), stacklevel=2)


def _check_logs(argument: str, pattern: str, logs: Callable[[], set[str]]) -> None:
    for name, _ in fields(pattern):
        if name not in ("epoch", "batch") and name not in (known := logs()):
            raise ValueError(
                f"{argument} names the log {name!r}, which this fit does not have: use epoch, batch or one of "
                f"{', '.join(sorted(known))}. Received: {show(pattern)}"
            )


def check_output_path(argument: str, place: str, folder: bool) -> None:
    """Reject a path that cannot be created or is a URL of an unknown kind; raise as `check_output_paths`."""
    if is_url(place):  # only writing tells the rest
        tensorflow_path(argument.strip("`"), place)
        return
    path = Path(place)
    if not folder and path.is_dir():
        raise SaveError(errno.EISDIR, f"{argument} is a folder: pass the path of a file. Received: {place}")
    wanted = find_fixed_folder(Path(place, "file") if folder else path)
    there = next((each for each in (wanted, *wanted.parents) if each.exists()), Path())
    if not there.is_dir():
        raise SaveError(
            errno.ENOTDIR,
            f"{argument} cannot be created, because {there} is a file: choose another path. Received: {place}",
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise SaveError(
            errno.EACCES,
            f"{argument} cannot be created, because {there} is read-only: make it writable. Received: {place}",
        )


def check_template(argument: str, place: Any) -> None:
    """Raise a ValueError unless a value is a path whose placeholders can be filled."""
    text = path_text(argument.strip("`"), str(place) if is_remote(place) else place)
    try:
        for field, form in fields(text):
            if not field or field.isdecimal():
                raise ValueError("a placeholder has no name")
            if not any(_can_be_written(number, form) for number in (1, 1.0)):
                raise ValueError(f"{form!r} is not a number format")
    except ValueError as error:
        raise ValueError(
            f"{argument} cannot be filled in ({error}): write placeholders as {{epoch:03d}} or {{val_loss:.2f}}. "
            f"Received: {show(text)}"
        ) from error


def fields(text: str) -> list[tuple[str, str]]:
    """Return the name and the format of each placeholder."""
    parts = string.Formatter().parse(text)
    return [(field, form or "") for _, field, form, _ in parts if field is not None]


def _can_be_written(number: float, form: str) -> bool:
    try:
        format(number, form)
    except ValueError:
        return False
    return True


@contextlib.contextmanager
def only_chief_writes(callbacks: Iterable[Any], chief: bool) -> Iterator[Spool]:
    """On every worker but the chief, Keras' own callbacks write into a temporary folder, and loggers are not called.

    Keras' own are called there as on the chief, so that they read the same of the model and decide the same. Enter this
    before `set_model` of the callbacks. Our own callbacks know whether they are on the chief. The profiles of `TensorBoard`,
    which show this worker alone, are kept. What is written to a store is written to the `Spool` that this yields.
    """
    with Spool() as spool, contextlib.ExitStack() as stack:
        for callback in callbacks:
            if chief or isinstance(callback, Profiler):
                _write_to(spool, callback, stack)
        if not chief:
            _discard_writes(callbacks, spool, stack)
        yield spool


@contextlib.contextmanager
def writes_to_stores(callbacks: Any) -> Iterator[None]:
    """Upload what the callbacks of an `evaluate` write to a store when the block is left."""
    given = [] if isinstance(callbacks, keras.callbacks.CallbackList) else keras.tree.flatten(callbacks or [])
    with Spool() as spool, contextlib.ExitStack() as stack:
        for callback in given:
            _write_to(spool, callback, stack)
        yield


def _write_to(spool: Spool, callback: Any, stack: contextlib.ExitStack) -> None:
    """Let a callback write to the spool what it would write to a store, unless it does that itself."""
    for kind, name, folder, url in () if _writes_itself(callback) else _outputs_of(callback):
        if is_store_url(url):
            local = spool.place(f"{name}` of `{kind.__name__}", url, folder)
            stack.callback(setattr, callback, name, url)
            setattr(callback, name, local if isinstance(url, str) else Path(local))
            if isinstance(callback, keras.callbacks.TensorBoard):
                stack.callback(begin_new_files, callback)  # which writes what is still in memory


def _writes_itself(callback: Any) -> bool:
    return any(each.writes_itself for each in ours([callback]))


def _discard_writes(callbacks: Iterable[Any], spool: Spool, stack: contextlib.ExitStack) -> None:
    hooks = [name for name in dir(keras.callbacks.Callback) if name.startswith("on_") or name == "set_model"]
    for number, callback in enumerate(callbacks):
        if any(cls.__module__.partition(".")[0] in LOGGERS for cls in type(callback).__mro__):
            own = vars(callback)
            stack.callback(own.update, {name: own[name] for name in hooks if name in own})
            for name in hooks:
                own[name] = no_hook
                stack.callback(own.pop, name, None)
            continue
        for kind in _ON_ALL_WORKERS:
            if isinstance(callback, kind) and not _writes_itself(callback):
                attribute = _OUTPUTS[kind][0]
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="unisono-not-chief-"))
                old = getattr(callback, attribute)
                name = str(old).replace("\\", "/").rpartition("/")[2] or f"callback-{number}"
                setattr(callback, attribute, f"{folder}/{name}")
                stack.callback(setattr, callback, attribute, old)
                if kind is keras.callbacks.TensorBoard:
                    kept = spool.place("log_dir", old, folder=True) if is_store_url(old) else str(old)
                    stack.callback(_keep_profiles, f"{folder}/{name}", kept)


def _keep_profiles(written: str, log_dir: str) -> None:
    """Copy a worker's profiles to its `log_dir`, under its own names: workers may share the folder and the host."""
    for path in tf.io.gfile.glob(f"{written}/*/plugins/profile/*/*"):
        folder, _, file = f"{log_dir}{path.removeprefix(written)}".rpartition("/")
        tf.io.gfile.makedirs(folder)
        tf.io.gfile.copy(path, f"{folder}/worker-{worker_index()}.{file}", overwrite=True)
