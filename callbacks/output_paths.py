"""Where callbacks write: a place that cannot be made is refused before the first step, not after the first epoch."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from ..distribute.arguments import shown
from ..distribute.storage import is_url, local_path, tensorflow_path
from ..distribute.workers.agreement import spans_workers
from ..distribute.workers.cluster import ClusterError, launched_task, read_cluster
from .backup.backup_and_restore import BackupAndRestore
from .diagnosis.anomaly_report import AnomalyReport
from .json_lines import JSONLines
from .path_templates import check_template, fields
from .profiler import Profiler
from .report.training_report import TrainingReport
from .safe_file import SaveError

# class -> (argument, the attribute that holds it, whether it is a folder)
_PLACES: dict[type, tuple[str, str, bool]] = {
    AnomalyReport: ("path", "path", False),
    BackupAndRestore: ("directory", "directory", True),
    JSONLines: ("path", "path", False),
    Profiler: ("log_dir", "log_dir", True),
    TrainingReport: ("path", "path", False),
    keras.callbacks.BackupAndRestore: ("backup_dir", "backup_dir", True),
    keras.callbacks.CSVLogger: ("filename", "filename", False),
    keras.callbacks.OrbaxCheckpoint: ("directory", "directory", True),
    keras.callbacks.ModelCheckpoint: ("filepath", "filepath", False),
    keras.callbacks.TensorBoard: ("log_dir", "log_dir", True),
}


def check_output_paths(callbacks: Sequence[Any], logs: Callable[[], set[str]] | None) -> None:
    """Refuses the places of callbacks in which nothing can be written. For the process that writes.

    Args:
        callbacks: of a fit.
        logs: () -> the names of its logs; None where they are not known beforehand.

    Raises:
        SaveError: (an OSError) a place cannot be made.
        ValueError: it is no path, or has a placeholder for a log that there is not.
    """
    for callback in callbacks:
        for kind, (name, attribute, folder) in _PLACES.items():
            place = getattr(callback, attribute, None) if isinstance(callback, kind) else None
            if place is not None:
                argument = f"`{name}` of `{kind.__name__}`"
                check_template(argument, place)
                if isinstance(callback, keras.callbacks.ModelCheckpoint):
                    _check_logs(argument, str(place), logs)
                backed_up = isinstance(callback, keras.callbacks.CSVLogger) and any(
                    isinstance(other, BackupAndRestore) for other in callbacks
                )
                if backed_up:  # a resume truncates the file
                    local_path(argument.strip("`"), place)
                check_output_path(argument, os.fspath(place), folder)


def check_launched_alone(callbacks: Iterable[Any], strategy: tf.distribute.Strategy) -> None:
    """Warns where a launcher started several processes, and each trains a model of its own.

    Args:
        callbacks: of a fit.
        strategy: that of the model.

    Raises:
        ClusterError: the processes would overwrite each other's files.
    """
    task = launched_task()
    if task is None or spans_workers(strategy):
        return
    writing = [type(each).__name__ for each in callbacks if isinstance(each, tuple(_PLACES))]
    if writing and read_cluster() is None:  # where Slurm says which task is the chief, it alone writes
        raise ClusterError(f"`callbacks` would overwrite each other's files ({', '.join(writing)}): {task}")
    warnings.warn(str(task), stacklevel=2)


def _check_logs(argument: str, pattern: str, logs: Callable[[], set[str]] | None) -> None:
    wanted = [field for field, _ in fields(pattern) if field not in ("epoch", "batch")]
    if wanted and logs is not None:
        known = logs()
        for name in wanted:
            if name not in known:
                raise ValueError(
                    f"{argument} names the log {name!r}, which this fit does not have: use epoch, batch or one of "
                    f"{', '.join(sorted(known))}. Received: {shown(pattern)}"
                )


def check_output_path(argument: str, place: str, folder: bool) -> None:
    """Rejects a path that cannot be created or is a URL of an unknown kind; raises as `check_output_paths`."""
    if is_url(place):  # only writing tells the rest
        tensorflow_path(argument.strip("`"), place)
        return
    path = Path(place)
    if not folder and path.is_dir():
        raise SaveError(
            errno.EISDIR, f"{argument} is a folder: give the name of a file in it. Received: {place}"
        )
    fixed = next((index for index, part in enumerate(path.parts) if "{" in part), len(path.parts))
    wanted = Path(*path.parts[:fixed]) if folder or fixed < len(path.parts) else path.parent
    there = next((each for each in (wanted, *wanted.parents) if each.exists()), Path())
    if not there.is_dir():
        raise SaveError(
            errno.ENOTDIR,
            f"{argument} cannot be made, because {there} is a file: choose another place. Received: {place}",
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise SaveError(
            errno.EACCES,
            f"{argument} cannot be made, because {there} is read-only: make it writable. Received: {place}",
        )
