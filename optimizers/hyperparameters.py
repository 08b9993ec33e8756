"""Checks of the settings of optimizers, each before an optimizer makes a step with it."""

import difflib
import functools
import inspect
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ..compat.keras_private.optimizers import own_learning_rate
from ..compat.wrong_use import WrongUse
from ..distribute.arguments import number, show, takes_arguments, truth, whole_number

_number, _whole_number = (functools.partial(functools.partial, check) for check in (number, whole_number))
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    name: check
    for check, names in [
        (_number(least=0, below=1), "adam_beta_1 adam_beta_2 beta_1 beta_2"),
        (_number(least=0, most=1), "ema_momentum momentum rho"),
        (_number(least=0), "adam_lr_ratio beta epsilon epsilon_1 epsilon_2 initial_accumulator_value"),
        (_number(least=0), "l1_regularization_strength l2_regularization_strength"),
        (_number(least=0), "l2_shrinkage_regularization_strength"),
        (_number(least=0, optional=True), "adam_weight_decay weight_decay"),
        (_number(most=0), "beta_2_decay learning_rate_power"),
        (_number(above=0), "clip_threshold"),
        (_number(above=0, optional=True), "clipnorm clipvalue global_clipnorm loss_scale_factor"),
        (_number(), "muon_a muon_b muon_c"),
        # 0 means never, as None.
        (_whole_number(least=0, optional=True), "ema_overwrite_frequency gradient_accumulation_steps"),
        (_whole_number(least=1), "ns_steps"),
        (_whole_number(least=0), "warmup_steps"),
        (truth, "amsgrad centered exclude_embeddings nesterov relative_step use_ema"),
        (lambda name, rate: check_learning_rate(rate), "learning_rate"),
    ]
    for name in names.split()
}
_OTHER_NAMES = {"lr": "learning_rate", "wd": "weight_decay", "eps": "epsilon", "clip_norm": "clipnorm"}
_OF_EVERY_OPTIMIZER = ("weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "loss_scale_factor")
_OURS = ("gradient_transformers", "gradient_aggregator")


def check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Raise a ValueError for wrong settings of an optimizer that was created as Keras' own, or by a user's class."""
    settings = dict(vars(optimizer))
    if not type(optimizer).__module__.startswith("keras."):  # the meaning of the user's settings is unknown
        settings = {name: settings[name] for name in _OF_EVERY_OPTIMIZER if name in settings}
    rate = own_learning_rate(optimizer)
    if isinstance(rate, keras.Variable):
        readable = tf.executing_eagerly() and tf.distribute.in_cross_replica_context()
        readable = readable or (tf.executing_eagerly() and not tf.distribute.has_strategy())
        rate = float(rate.numpy()) if readable else 0.0
    check_settings({**settings, "learning_rate": rate})


def with_checked_arguments(cls: type) -> Callable[..., None]:
    """Return the `__init__` of one of Keras' classes, but with arguments checked before Keras uses them."""
    init = cls.__init__
    signature = inspect.signature(init)
    takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        known = [*signature.parameters, *_OURS, "decay"]
        unknown = [name for name in kwargs if name not in known]
        if unknown and takes_any:
            name = unknown[0]
            close = [_OTHER_NAMES.get(name, ""), *difflib.get_close_matches(name, known, 1, 0.6)]
            meant = next((each for each in close if each in known), None)
            fix = f"did you mean `{meant}`?" if meant else f"it takes {', '.join(known[1:])}."
            raise WrongUse(f"`{name}` ({show(kwargs[name])}) is not an argument of {cls.__name__}: {fix}")
        try:
            arguments = signature.bind_partial(self, *args, **kwargs).arguments
        except TypeError:  # Python's own message says what is missing or too much
            arguments = {}
        try:
            check_settings(arguments)
        except ValueError as error:
            raise _as_keras_says(error, init, self, *args, **kwargs) from None
        init(self, *args, **kwargs)

    return __init__


def _as_keras_says(error: ValueError, init: Any, optimizer: Any, *args: Any, **kwargs: Any) -> ValueError:
    """Return the message of Keras' `__init__` for the argument that `error` is about, if it has one, with the value."""
    _, name, rest = str(error).split("`", 2)
    if name == "learning_rate":  # Keras says that a function takes the step, and calls it without
        return error
    try:
        init(optimizer, *args, **kwargs)
    except ValueError as theirs:
        if name in str(theirs):
            value = "" if "Received" in str(theirs) else f" Received{rest.partition('Received')[2]}"
            return ValueError(f"{theirs}{value}")
    except Exception:  # a value of another kind, which Keras does not expect
        return error
    return error


def check_settings(settings: Mapping[str, Any]) -> None:
    """Reject settings of Keras' optimizers of a wrong kind or out of range; tensors are not checked."""
    for name, value in settings.items():
        value = value[()] if isinstance(value, np.ndarray) else value  # a number, where the array has no axis
        if name in _CHECKS and not _is_tensor(value) and value is not False:
            _CHECKS[name](name, value)


def check_learning_rate(rate: Any) -> None:
    """Raise a ValueError for a rate that is negative, not finite or not a rate; check the first rate of a schedule."""
    if isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
        if type(rate).__module__.startswith(("keras.", "unisono.")) and tf.executing_eagerly():
            _check_schedule(rate)
        return
    rate = rate[()] if isinstance(rate, np.ndarray) else rate
    if isinstance(rate, type):
        raise WrongUse(
            f"`learning_rate` must be an instance: pass {rate.__name__}(...). Received: {show(rate)}"
        )
    if callable(rate) and not _is_tensor(rate):
        if not takes_arguments(rate, 0):
            raise WrongUse(
                "`learning_rate` must be a function without arguments; for a rate that depends on the step, pass a "
                f"keras.optimizers.schedules.LearningRateSchedule. Received: {show(rate)}"
            )
        return
    if not _is_tensor(rate):
        number("learning_rate", rate, least=0)


def _check_schedule(schedule: Any) -> None:
    try:
        first = float(tf.convert_to_tensor(schedule(0)).numpy())
    except Exception as error:
        raise WrongUse(
            f"`learning_rate` is a {type(schedule).__name__} that returns no number at the first step: check its arguments. "
            f"Received: {show(schedule.get_config())}"
        ) from error
    if not 0 <= first < float("inf"):
        raise WrongUse(
            f"`learning_rate` must be a finite number of at least 0, but {type(schedule).__name__} returns {first} at "
            f"the first step. Received: {show(schedule.get_config())}"
        )


def _is_tensor(value: Any) -> bool:
    if isinstance(value, numbers.Number | np.generic):
        return False
    return tf.is_tensor(value) or isinstance(value, keras.Variable | tf.Variable)
