"""With several workers every worker calls the callbacks, and only the chief writes files; profiles each writes its own."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from ..distribute.workers.cluster import worker_index

# Keras' callbacks that write, and the attribute that says where.
_PLACES = {
    keras.callbacks.CSVLogger: "filename",
    keras.callbacks.ModelCheckpoint: "filepath",
    keras.callbacks.TensorBoard: "log_dir",
}

# The packages of loggers that write to a server or to files of their own: on the chief alone.
_LOGGERS = frozenset({"aim", "clearml", "comet_ml", "dvclive", "mlflow", "neptune", "swanlab", "wandb"})


@contextlib.contextmanager
def only_chief_writes(callbacks: Iterable[Any], chief: bool) -> Iterator[None]:
    """On every worker but the chief, Keras' own callbacks write into a temporary folder, and loggers are not called.

    Keras' own are called there as on the chief, so that they read the same of the model and decide the same. Enter this
    before `set_model` of the callbacks. Our own callbacks know whether they are on the chief. The profiles of `TensorBoard`,
    which show this worker alone, are kept.
    """
    if chief:
        yield
        return
    with contextlib.ExitStack() as stack:
        for number, callback in enumerate(callbacks):
            if _is_logger(callback):
                stack.enter_context(_silenced(callback))
                continue
            for kind, place in _PLACES.items():
                if isinstance(callback, kind) and not hasattr(callback, "_writes_files"):
                    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="unisono-not-chief-"))
                    old = getattr(callback, place)
                    name = str(old).replace("\\", "/").rpartition("/")[2] or f"callback-{number}"
                    setattr(callback, place, f"{folder}/{name}")
                    stack.callback(setattr, callback, place, old)
                    if place == "log_dir":
                        stack.callback(_keep_profiles, f"{folder}/{name}", str(old))
        yield


def _keep_profiles(written: str, log_dir: str) -> None:
    """Copies a worker's profiles to its `log_dir`, under its own names: workers may share the folder and the host."""
    for path in tf.io.gfile.glob(f"{written}/plugins/profile/*/*"):
        session, file = path.split("/")[-2:]
        folder = f"{log_dir}/plugins/profile/{session}"
        tf.io.gfile.makedirs(folder)
        tf.io.gfile.copy(path, f"{folder}/worker-{worker_index()}.{file}", overwrite=True)


def _is_logger(callback: Any) -> bool:
    return any(kind.__module__.partition(".")[0] in _LOGGERS for kind in type(callback).__mro__)


@contextlib.contextmanager
def _silenced(callback: Any) -> Iterator[None]:
    """No hook of the callback does anything inside."""
    hooks = [name for name in dir(keras.callbacks.Callback) if name.startswith("on_") or name == "set_model"]
    before = dict(vars(callback))
    vars(callback).update(dict.fromkeys(hooks, _nothing))
    try:
        yield
    finally:
        for name in hooks:
            vars(callback).pop(name, None)
        vars(callback).update({name: before[name] for name in hooks if name in before})


def _nothing(*args: Any, **kwargs: Any) -> None:
    """In place of a hook."""
