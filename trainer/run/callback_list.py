"""The list of callbacks of a loop, in call order."""

from collections.abc import Callable
from typing import Any

import keras

from ...callbacks.callback import setting
from ...callbacks.monitoring.profiler import keep_from_crash
from ...callbacks.monitoring.progress import ProgressBar
from ...state.trained_model import TrainedModel

_MAKES_LOGS = ("compute_metrics", "get_metrics_result", "metrics")


def callback_list(
    model: TrainedModel, callbacks: Any, add_history: bool = False, **params: Any
) -> keras.callbacks.CallbackList:
    """Return Keras' list, with callbacks that must run after the others (backups) at its end.

    `params`: `verbose`, `epochs` and `steps`, which callbacks read.
    """
    if not isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = keras.tree.flatten(callbacks) if callbacks else []
        if params["verbose"] != 0 and not any(
            isinstance(c, keras.callbacks.ProgbarLogger) for c in callbacks
        ):
            callbacks = [*callbacks, ProgressBar()]
        callbacks = keras.callbacks.CallbackList(callbacks, add_history=add_history, model=model, **params)
    for callback in callbacks.callbacks:
        keep_from_crash(callback, model.distribute_strategy)
    callbacks.callbacks.sort(key=lambda callback: setting(callback, "runs_last"))
    return callbacks


def log_names(model: TrainedModel, validates: bool) -> Callable[[], set[str]] | None:
    """Return () -> names of an epoch's logs, without those that callbacks add; None if custom code may add others."""
    if model._has_own_logs(True) or model._has_own_logs(False):
        return None
    if any(getattr(type(model), name) is not getattr(keras.Model, name) for name in _MAKES_LOGS):
        return None

    def names() -> set[str]:
        own = {*model.get_metrics_result(), *model._optimizer_logs()}
        return {*own, "learning_rate", *(f"val_{name}" for name in own if validates)}

    return names
