"""Arguments of Keras' own callbacks that would otherwise fail after the first epoch."""

import inspect
from collections.abc import Iterable
from typing import Any

import keras

from ..distribute.arguments import number, show, takes_arguments

_CALLBACKS = keras.callbacks
# class -> attribute -> the range of `number`.
_NUMBERS: dict[type, dict[str, dict[str, Any]]] = {
    _CALLBACKS.EarlyStopping: {
        "patience": {"least": 0, "finite": False},
        "start_from_epoch": {"least": 0},
        "min_delta": {},
        "baseline": {"optional": True},
    },
    _CALLBACKS.ReduceLROnPlateau: {
        "factor": {"above": 0},
        "patience": {"least": 0, "finite": False},
        "cooldown": {"least": 0},
        "min_delta": {},
        "min_lr": {"least": 0},
    },
}
# class -> attribute that must be text -> what it is, with an example
_LOG = {"monitor": 'the name of a log, such as "val_loss"'}
_TEXTS: dict[type, dict[str, str]] = {
    **dict.fromkeys(
        (_CALLBACKS.EarlyStopping, _CALLBACKS.ReduceLROnPlateau, _CALLBACKS.ModelCheckpoint), _LOG
    ),
    _CALLBACKS.CSVLogger: {"filename": 'the path of a file, such as "log.csv"'},
    _CALLBACKS.RemoteMonitor: {"root": 'a URL, such as "http://localhost:9000"', "path": "the path of a URL"},
}


def check_keras_callbacks(callbacks: Iterable[Any], optimizer: Any) -> None:
    """Raise a ValueError or TypeError for an argument of a wrong kind or out of range, or one that the optimizer lacks."""
    for callback in callbacks:
        for kind, texts in _TEXTS.items():
            for name, what in texts.items() if isinstance(callback, kind) else ():
                if not isinstance(text := getattr(callback, name, ""), str):
                    raise ValueError(f"`{name}` of `{kind.__name__}` must be {what}. Received: {show(text)}")
        if isinstance(callback, _CALLBACKS.SwapEMAWeights) and not _keeps_averages(optimizer):
            raise ValueError(
                "`SwapEMAWeights` needs averages of the weights: pass an optimizer with `use_ema=True` to `compile`. "
                f"Received: {show(optimizer)} with use_ema={getattr(optimizer, 'use_ema', None)}"
            )
        for kind, ranges in _NUMBERS.items():
            if isinstance(callback, kind):
                for name, limits in ranges.items():
                    if hasattr(callback, name):
                        number(f"{name}` of `{kind.__name__}", getattr(callback, name), **limits)
        if isinstance(callback, _CALLBACKS.LearningRateScheduler) and hasattr(callback, "schedule"):
            _check_schedule(callback.schedule)
        if isinstance(callback, _CALLBACKS.LambdaCallback):
            _check_hooks(callback)
        separator = getattr(callback, "sep", ",") if isinstance(callback, _CALLBACKS.CSVLogger) else ","
        if not isinstance(separator, str) or len(separator) != 1:
            raise ValueError(f"`separator` of `CSVLogger` must be one character. Received: {show(separator)}")


def _keeps_averages(optimizer: Any) -> bool:
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a LossScaleOptimizer
    return any(getattr(each, "use_ema", False) for each in getattr(optimizer, "optimizers", [optimizer]))


def _check_schedule(schedule: Any) -> None:
    if isinstance(schedule, keras.optimizers.schedules.LearningRateSchedule):
        raise ValueError(
            f"`schedule` of `LearningRateScheduler` must be a function of the epoch, but {show(schedule)} counts steps: "
            "pass it to the optimizer as `learning_rate`."
        )
    function = callable(schedule) and not isinstance(schedule, type)
    if not function or not (takes_arguments(schedule, 1) or takes_arguments(schedule, 2)):
        raise ValueError(
            "`schedule` of `LearningRateScheduler` must be a function (epoch) or (epoch, learning_rate) that returns a "
            f"float. Received: {show(schedule)}"
        )


def _check_hooks(callback: Any) -> None:
    for name, value in vars(callback).items():
        if not name.startswith("on_"):
            continue
        arguments = 2 if "epoch" in name or "batch" in name else 1
        if not hasattr(_CALLBACKS.Callback, name):
            hooks = [each for each in dir(_CALLBACKS.Callback) if each.startswith("on_")]
            raise ValueError(f"`{name}` of `LambdaCallback` is not a hook: use one of {', '.join(hooks)}.")
        if not callable(value) or (inspect.isfunction(value) and not takes_arguments(value, arguments)):
            takes = "(logs)" if arguments == 1 else "(epoch or batch, logs)"
            raise ValueError(
                f"`{name}` of `LambdaCallback` must be a function {takes}. Received: {show(value)}"
            )
