"""The settings of optimizers: each in its range, before an optimizer makes a step with it."""

from __future__ import annotations

import difflib
import functools
import inspect
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..compat.optimizers import own_learning_rate
from ..distribute.arguments import number, shown, takes_arguments, truth, whole_number

_SHARE = {"least": 0, "most": 1}
_BELOW_ONE = {"least": 0, "below": 1}
_NOT_NEGATIVE = {"least": 0}
_LIMIT = {"above": 0, "optional": True}
_NUMBERS: dict[str, dict[str, Any]] = {
    "adam_beta_1": _BELOW_ONE,
    "adam_beta_2": _BELOW_ONE,
    "adam_weight_decay": {"least": 0, "optional": True},
    "adam_lr_ratio": _NOT_NEGATIVE,
    "beta": _NOT_NEGATIVE,
    "beta_1": _BELOW_ONE,
    "beta_2": _BELOW_ONE,
    "beta_2_decay": {"most": 0},
    "clip_threshold": {"above": 0},
    "clipnorm": _LIMIT,
    "clipvalue": _LIMIT,
    "ema_momentum": _SHARE,
    "epsilon": _NOT_NEGATIVE,
    "epsilon_1": _NOT_NEGATIVE,
    "epsilon_2": _NOT_NEGATIVE,
    "global_clipnorm": _LIMIT,
    "initial_accumulator_value": _NOT_NEGATIVE,
    "l1_regularization_strength": _NOT_NEGATIVE,
    "l2_regularization_strength": _NOT_NEGATIVE,
    "l2_shrinkage_regularization_strength": _NOT_NEGATIVE,
    "learning_rate_power": {"most": 0},
    "loss_scale_factor": _LIMIT,
    "momentum": _SHARE,
    "muon_a": {},
    "muon_b": {},
    "muon_c": {},
    "rho": _SHARE,
    "weight_decay": {"least": 0, "optional": True},
}
_WHOLE_NUMBERS: dict[str, dict[str, Any]] = {
    "ema_overwrite_frequency": {"least": 0, "optional": True},  # 0 is never, as None
    "gradient_accumulation_steps": {"least": 0, "optional": True},
    "ns_steps": {"least": 1},
    "warmup_steps": {"least": 0},
}
_TRUTHS = ("amsgrad", "centered", "exclude_embeddings", "nesterov", "relative_step", "use_ema")
_OTHER_NAMES = {"lr": "learning_rate", "wd": "weight_decay", "eps": "epsilon", "clip_norm": "clipnorm"}
_OF_EVERY_OPTIMIZER = ("weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor")
_OURS = ("gradient_transformers", "gradient_aggregator")


class CheckedSettings(keras.optimizers.Optimizer):
    """Refuses settings that no training can have. A base of our optimizers; owns no state."""

    @property
    def learning_rate(self) -> Any:
        """As `keras.optimizers.Optimizer.learning_rate`."""
        return keras.optimizers.Optimizer.learning_rate.fget(self)  # type: ignore[attr-defined]

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        check_learning_rate(value)
        keras.optimizers.Optimizer.learning_rate.fset(self, value)  # type: ignore[attr-defined]


def check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Refuses settings of an optimizer that was made as Keras' own, or by a class of the user's.

    Raises:
        ValueError: see `check_settings`.
    """
    settings = dict(vars(optimizer))
    if not type(optimizer).__module__.startswith("keras."):  # what the user's own settings mean is not known
        settings = {name: settings[name] for name in _OF_EVERY_OPTIMIZER if name in settings}
    rate = own_learning_rate(optimizer)
    if isinstance(rate, keras.Variable):
        readable = tf.executing_eagerly() and tf.distribute.in_cross_replica_context()
        readable = readable or (tf.executing_eagerly() and not tf.distribute.has_strategy())
        rate = float(rate.numpy()) if readable else 0.0
    check_settings({**settings, "learning_rate": rate})


def with_checked_arguments(cls: type) -> Callable[..., None]:
    """`cls.__init__` of one of Keras' classes, which refuses arguments before Keras uses them."""
    init = cls.__init__
    signature = inspect.signature(init)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        known = [*signature.parameters, *_OURS, "decay"]
        unknown = [name for name in kwargs if name not in known]
        if unknown and takes_any:
            name = unknown[0]
            close = [_OTHER_NAMES.get(name, "")] + difflib.get_close_matches(name, known, 1, 0.6)
            close = [each for each in close if each in known]
            cure = f"did you mean `{close[0]}`?" if close else f"it takes {', '.join(known[1:])}."
            raise ValueError(f"`{name}` ({shown(kwargs[name])}) is no argument of {cls.__name__}: {cure}")
        try:
            arguments = signature.bind_partial(self, *args, **kwargs).arguments
        except TypeError:  # Python's own message says what is missing or too much
            arguments = {}
        try:
            check_settings(arguments)
        except ValueError as error:
            raise _in_words_of_keras(error, init, self, *args, **kwargs) from None
        init(self, *args, **kwargs)

    return __init__


def _in_words_of_keras(error: ValueError, init: Any, optimizer: Any, *args: Any, **kwargs: Any) -> ValueError:
    """What Keras' own `__init__` says of the argument that `error` refuses, where it refuses it too, and its value."""
    _, name, rest = str(error).split("`", 2)
    if name == "learning_rate":  # of which Keras says that a function takes the step, and calls it without
        return error
    try:
        init(optimizer, *args, **kwargs)
    except ValueError as theirs:
        if name in str(theirs):
            value = "" if "Received" in str(theirs) else f" Received{rest.partition('Received')[2]}"
            return ValueError(f"{theirs}{value}")
    except Exception:  # a value of another kind, which Keras stumbles over
        return error
    return error


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuses settings of Keras' optimizers that are of a wrong kind or out of range; tensors are taken as they are.

    Raises:
        ValueError: one sentence with the setting, its value and the range.
    """
    for name, value in settings.items():
        value = value[()] if isinstance(value, np.ndarray) else value  # a number, where the array has no axis
        if _is_tensor(value) or value is False:
            continue
        if name == "learning_rate":
            check_learning_rate(value)
        elif name in _NUMBERS:
            number(name, value, **_NUMBERS[name])
        elif name in _WHOLE_NUMBERS:
            whole_number(name, value, **_WHOLE_NUMBERS[name])
        elif name in _TRUTHS:
            truth(name, value)


def check_learning_rate(rate: Any) -> None:
    """Refuses a rate that is negative, not finite or no rate at all.

    Raises:
        ValueError: see above; of a schedule, its rate at the first update.
    """
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        if type(rate).__module__.startswith(("keras.", "unisono.")) and tf.executing_eagerly():
            _check_schedule(rate)
        return
    rate = rate[()] if isinstance(rate, np.ndarray) else rate
    if isinstance(rate, type):
        raise ValueError(
            f"`learning_rate` must be an instance: give {rate.__name__}(...). Received: {shown(rate)}"
        )
    if callable(rate) and not _is_tensor(rate):
        if not takes_arguments(rate, 0):
            raise ValueError(
                "`learning_rate` must be a function without arguments; for a rate that depends on the step, give a "
                f"keras.optimizers.schedules.LearningRateSchedule. Received: {shown(rate)}"
            )
        return
    if not _is_tensor(rate):
        number("learning_rate", rate, least=0)


def _check_schedule(schedule: Any) -> None:
    try:
        first = float(tf.convert_to_tensor(schedule(0)).numpy())
    except Exception as error:
        raise ValueError(
            f"`learning_rate` is a {type(schedule).__name__} that gives no number at the first step; give it numbers. "
            f"Received: {shown(schedule.get_config())}"
        ) from error
    if not 0 <= first < float("inf"):
        raise ValueError(
            f"`learning_rate` must be a finite number of at least 0, but {type(schedule).__name__} gives {first} at the "
            f"first step. Received: {shown(schedule.get_config())}"
        )


def _is_tensor(value: Any) -> bool:
    if isinstance(value, numbers.Number | np.generic):
        return False
    return tf.is_tensor(value) or isinstance(value, keras.Variable | tf.Variable)
