"""Checks of `compile`: each error names the argument, the value and the fix."""

import difflib
import inspect
import math
import numbers
import warnings
from collections.abc import Hashable
from typing import Any

import keras
import tensorflow as tf

from ..compat.upstream_places import Functional as KerasFunctional
from ..distribute.arguments import show, takes_arguments, truth, whole_number
from ..state.trained_model import TrainedModel
from .inputs.batch import name_leaves

_FUNCTION = "or a function of (y_true, y_pred)"
_OPTIMIZER = '"adam", or an instance of a class of keras.optimizers or unisono.optimizers'
_KINDS = {
    "optimizer": (keras.optimizers, "an optimizer", _OPTIMIZER),
    "loss": (keras.losses, "a loss", f'"mse", an object of keras.losses {_FUNCTION}'),
    "metric": (keras.metrics, "a metric", f'"mae", an object of keras.metrics {_FUNCTION}'),
}
_SHORT_NAMES = ("accuracy", "mae", "mape", "mse", "msle")


def check_compile(model: TrainedModel, arguments: dict[str, Any]) -> None:
    """Reject invalid arguments of `compile`, with the model and its compiled state unchanged."""
    whole_number("steps_per_execution", arguments["steps_per_execution"], words=("auto",))
    jit_compile = arguments["jit_compile"]
    if not isinstance(jit_compile, Hashable) or jit_compile not in ("auto", True, False, None):
        raise ValueError(f'`jit_compile` must be "auto", True or False. Received: {show(jit_compile)}')
    for name in ("run_eagerly", "auto_scale_loss"):
        if arguments[name] is not None:
            truth(name, arguments[name])
    for argument in ("loss", "metrics", "weighted_metrics"):
        if argument == "loss" or isinstance(arguments[argument], list | tuple | dict):
            for name, value in _leaves(argument, arguments[argument]):
                _check_function(name, value, "loss" if argument == "loss" else "metric")
    for name, value in _leaves("loss_weights", arguments["loss_weights"]):
        if isinstance(value, str) or (isinstance(value, numbers.Real) and not math.isfinite(value)):
            raise ValueError(f"`{name}` must be a finite number. Received: {show(value)}")
    if not model._overrides_step("train_step"):  # which may use them differently
        _check_outputs(model, arguments)
        _check_names_of_logs(arguments)


def interpret(name: str, value: Any, kind: str, others: tuple[type, ...] = ()) -> Any:
    """Return the object of Keras that `value` stands for; the ValueError says what to pass instead of it, or of `others`."""
    module, noun, examples = _KINDS[kind]
    try:
        if isinstance(value, others):
            raise TypeError
        return module.get(value)
    except (ValueError, KeyError, TypeError) as error:
        if _is_config(value):
            raise
        fix = f"pass a name such as {examples}."
        if isinstance(value, str):
            names = [each for each in dir(module) if not each.startswith("_")]
            short = [name.lower() for name in names] if kind == "optimizer" else _SHORT_NAMES
            known = [*short, *names]  # names in small letters come before those of classes
            close = [
                each
                for some in ([name for name in known if name.islower()], known)
                for each in difflib.get_close_matches(value.lower(), some, 1, 0.6)
            ]
            fix = f"did you mean {close[0]!r}?" if close else "pass one of its names, or an object."
            if kind == "optimizer" and close and close[0] == value.lower():  # Keras knows `Lamb` by no name
                fix = f"pass an instance, {next(each for each in names if each.lower() == close[0])}()."
        elif inspect.isclass(value):
            fix = f"pass an instance, {value.__name__}()."
        raise ValueError(f"`{name}` {show(value)} is not {noun} of Keras 3: {fix}") from error


def _is_config(value: Any) -> bool:
    return isinstance(value, dict) and "class_name" in value


def _leaves(name: str, value: Any) -> list[tuple[str, Any]]:
    return [(place, leaf) for place, leaf in name_leaves(name, value, _is_config) if leaf is not None]


def _check_function(name: str, value: Any, kind: str) -> None:
    """Reject invalid losses and metrics: an unknown name, an object of another kind, a function of one argument."""
    others = (keras.layers.Layer, *([keras.metrics.Metric] if kind == "loss" else []))
    if isinstance(value, others) or not (callable(value) or isinstance(value, dict)):
        if kind == "loss" or value not in ("accuracy", "acc", "crossentropy", "ce"):
            interpret(name, value, kind, others)
    elif inspect.isfunction(value) and not takes_arguments(value, 2):
        raise ValueError(
            f"`{name}` must be a function of (y_true, y_pred), but {value.__name__}{inspect.signature(value)} takes other "
            "arguments: change them."
        )


def takes_numbers(loss: Any) -> bool:
    """Return whether every output has a loss that gets its targets as numbers: all except those with a custom `__call__`."""
    plain = keras.losses.Loss
    parts = tf.nest.flatten(loss)
    return None not in parts and all(
        type(part).__call__ is plain.__call__ for part in parts if isinstance(part, plain)
    )


def _check_outputs(model: TrainedModel, arguments: dict[str, Any]) -> None:
    """Reject what Keras would ignore: unknown outputs (of metrics of one output: a warning), and lists of other lengths."""
    names = output_names(model)
    if isinstance(arguments["loss"], list | tuple | dict) and not any(_leaves("loss", arguments["loss"])):
        raise ValueError(
            f"`loss` must have a loss for at least one output, or be None. Received: {show(arguments['loss'])}"
        )
    for argument in ("loss", "loss_weights", "metrics", "weighted_metrics"):
        value = arguments[argument]
        given = value if isinstance(value, dict) and not _is_config(value) else {}
        if given and argument == "loss" and isinstance(model, keras.Sequential):
            raise ValueError(
                "`loss` must not be a dict for a Sequential model, which has one output: pass its loss directly. "
                f"Received: {show(value)}"
            )
        unknown = [key for key in given if key not in names] if names else []
        if unknown:
            sentence = (
                f"`{argument}` names the output {unknown[0]!r}, which the model does not have: use "
                f"{', '.join(map(repr, names))}."
            )
            if len(names) > 1 or argument.startswith("loss"):
                raise ValueError(sentence)
            warnings.warn(f"{sentence} Its only output gets all of them.", stacklevel=5)
        few = 1 if argument == "loss" else 2
        of_losses = argument.startswith("loss") and isinstance(value, list | tuple)
        if of_losses and len(names) >= few and len(value) != len(names):
            raise ValueError(
                f"`{argument}` must have one entry for each of the {len(names)} outputs ({', '.join(names)}). "
                f"Received: {show(value)}"
            )


def _check_names_of_logs(arguments: dict[str, Any]) -> None:
    """Reject a metric with the name of another log."""
    named = {
        place: getattr(metric, "name", None) or getattr(metric, "__name__", metric)
        for argument in ("metrics", "weighted_metrics")
        for place, metric in _leaves(argument, arguments[argument])
    }
    logs = {"loss", *map(str, named.values())}
    for place, name in named.items():
        if name == "loss" or (str(name).startswith("val_") and str(name)[4:] in logs):
            raise ValueError(f"`{place}` has the name {name!r}, which another log also has: rename it.")


def output_names(model: TrainedModel) -> list[str]:
    """Return the names of a functional model's outputs; none where they are not known yet, or are nested."""
    if isinstance(model, keras.Sequential) and type(model).call is keras.Sequential.call:
        return [model.layers[-1].name] if model.layers else []
    output = getattr(model, "output", None) if isinstance(model, KerasFunctional) else None
    parts = list(output.values()) if isinstance(output, dict) else output
    if not isinstance(parts, list | tuple):
        return [] if parts is None else list(getattr(model, "output_names", ()))
    if any(isinstance(part, list | tuple | dict) for part in parts):
        return []
    return list(output) if isinstance(output, dict) else list(getattr(model, "output_names", ()))


def check_optimizer(model: TrainedModel, method: str) -> None:
    """Reject training without an optimizer; a custom step may have other optimizers."""
    if model.optimizer is None and not model._overrides_step("train_step"):
        raise ValueError(
            f"`{method}()` needs an optimizer, but the model was compiled with optimizer=None: compile it with "
            'one, for example optimizer="adam".'
        )


def check_outside(method: str) -> None:
    """Reject training inside a `tf.function` or `strategy.run`."""
    if not tf.executing_eagerly():
        raise ValueError(
            f"`{method}()` was called inside a tf.function: call it outside, as it compiles its steps itself."
        )
    if tf.distribute.has_strategy() and tf.distribute.get_replica_context() is not None:
        raise ValueError(
            f"`{method}()` was called inside `strategy.run`: call it outside, as it runs its steps on all replicas itself."
        )
