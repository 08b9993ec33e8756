"""Which callbacks log metrics, and checks before the first step that callbacks monitor logs that a fit can have."""

import difflib
from collections.abc import Callable, Sequence
from typing import Any

import keras

from ..distribute.arguments import show

# The packages of loggers that write to a server or to their own files.
LOGGERS = frozenset(
    "aim clearml comet_ml dvclive mlflow neptune neptune_tensorflow_keras swanlab wandb".split()  # noqa: SIM905
)
# The classes whose per-batch hooks only log, by package; their others may save or evaluate.
_METRIC_LOGGERS = {
    "comet_ml": ("CometBaseKerasCallback", "CometEmptyKerasCallback", "CometKerasCallback"),
    "mlflow": ("MlflowCallback",),
    "neptune_tensorflow_keras": ("NeptuneCallback",),
    "swanlab": ("SwanLabCallback",),
    "wandb": ("WandbCallback", "WandbMetricsLogger"),
}
_KNOWN = frozenset({"keras", "unisono", *LOGGERS})
# class -> the method that reads the monitored log
_READERS: dict[type, str] = {
    keras.callbacks.EarlyStopping: "get_monitor_value",
    keras.callbacks.ReduceLROnPlateau: "on_epoch_end",
    keras.callbacks.ModelCheckpoint: "on_epoch_end",
}


def is_metric_logger(callback: Any, hooks: Sequence[str]) -> bool:
    """Return whether a metric logger of a known package defines each of these hooks of a callback that does not save."""
    if isinstance(callback, keras.callbacks.ModelCheckpoint):
        return False
    owners = [_class_defining(callback, hook) for hook in hooks if hook not in vars(callback)]
    known = [each.__name__ in _METRIC_LOGGERS.get(_package_of(each), ()) for each in owners]
    return bool(hooks) and len(known) == len(hooks) and all(known)


def may_add_logs(callback: Any) -> bool:
    """Return whether user code in `on_epoch_end` of a callback may add logs for the callbacks after it."""
    if "on_epoch_end" in vars(callback):  # of `LambdaCallback`, or assigned
        return True
    return _package_of(_class_defining(callback, "on_epoch_end")) not in _KNOWN


def check_monitors(callbacks: Sequence[Any], logs: Callable[[], set[str]]) -> None:
    """Raise a ValueError for a `monitor` that is read but can be no log; `logs` returns the names of the logs.

    A callback after one that may add logs is not checked: Keras warns if its log is missing.
    """
    for callback in callbacks:
        kind = next((kind for kind in _READERS if isinstance(callback, kind)), None)
        if kind is not None and _reads(callback, kind) and callback.monitor not in (known := logs()):
            name = callback.monitor
            near = difflib.get_close_matches(str(name), sorted(known), 1)
            advice = f"did you mean {near[0]!r}? " if near else ""
            if str(name).removeprefix("val_") in known:
                advice = "pass `validation_data` or `validation_split`, or monitor another log. "
            raise ValueError(
                f"`monitor={show(name)}` of `{type(callback).__name__}` is not a log of this fit: {advice}"
                f"The logs are {', '.join(sorted(known))}."
            )
        if may_add_logs(callback):
            return


def _reads(callback: Any, kind: type) -> bool:
    if kind is keras.callbacks.ModelCheckpoint and not (
        callback.save_best_only or getattr(callback, "keep_best", None)
    ):
        return False
    return _package_of(_class_defining(callback, _READERS[kind])) in _KNOWN


def _class_defining(callback: Any, method: str) -> type:
    """Return the class that defines a method of a callback."""
    return next((cls for cls in type(callback).__mro__ if method in vars(cls)), object)


def _package_of(cls: type) -> str:
    return cls.__module__.partition(".")[0]
