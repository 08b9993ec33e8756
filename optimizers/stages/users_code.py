"""What is known of the code that takes part in an update: whether some is a user's, and whether it writes single rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.optimizers import own_learning_rate
from ..building import inner_optimizers

_KNOWN = ("keras", "unisono")
ELEMENTWISE = frozenset(
    getattr(keras.optimizers, name)
    for name in ["SGD", "Adam", "AdamW", "Adamax", "Nadam", "RMSprop", "Adagrad", "Adadelta", "Ftrl", "Lion"]
    if hasattr(keras.optimizers, name)
)
"""Keras' optimizers whose update rules treat each number by itself."""
_NAMELESS_RULES = ELEMENTWISE | {keras.optimizers.Lamb}
_DENSE_RULES = (keras.optimizers.Adam, keras.optimizers.Adamax, keras.optimizers.Nadam, keras.optimizers.Lamb)


def has_code_of_users(optimizer: Any, variables: Sequence[Any]) -> bool:
    """Whether the transform or the update of `variables` runs code that is neither Keras' nor ours.

    Those two contain no sum of three terms or more that TensorFlow could reorder (see `replicas.function_of_its_own`); of
    any other code nothing is known.
    """
    return any(_has_own_code(each) for each in (optimizer, *inner_optimizers(optimizer))) or any(
        v.constraint is not None and not _is_known(v.constraint)
        for v in variables
        if isinstance(v, keras.Variable)
    )


def makes_slices_dense(optimizer: Any) -> bool:
    """Whether all rules of the optimizer are Keras' that make one tensor of a sparse gradient: they add it to a whole slot.

    Others, such as SGD's and Adagrad's, write to the weights those rows alone that it names.
    """
    rules = inner_optimizers(optimizer) or [optimizer]
    return all(isinstance(rule, _DENSE_RULES) for rule in rules)


def is_of_keras(optimizer: Any) -> bool:
    """Whether an update runs Keras' code and ours alone, with numbers and Keras' schedules as settings."""
    settings = {name: value for name, value in vars(optimizer).items() if not name.startswith("_")}
    settings.pop("accumulated_weight", None)
    numbers = not any(isinstance(value, (tf.Variable, keras.Variable)) for value in settings.values())
    own_methods = {"update_step", "assign", "assign_add", "assign_sub"} & settings.keys()
    return numbers and not own_methods and all(map(_is_known, _code_of_update(optimizer)))


def asks_for_no_name(optimizer: Any) -> bool:
    """Whether the update rule is one of Keras' that look at nothing of a variable but its dtype, shape and slots."""
    rule = type(optimizer).update_step
    known = any(rule is cls.update_step for cls in _NAMELESS_RULES)
    as_written = rule.__module__.startswith("keras.") and not hasattr(rule, "__wrapped__")
    return known and as_written and is_of_keras(optimizer)


def takes_gradients_itself(optimizer: Any) -> bool:
    """Whether a user's class has an `apply` or `apply_gradients` of its own, which may look at all gradients at once."""
    own = [vars(each) for each in _classes(optimizer) if not _is_known(each)]
    return any("apply" in names or "apply_gradients" in names for names in own)


def apply_of(optimizer: Any) -> Callable[..., None]:
    """The `apply` of an optimizer without what a user's class does before it calls that of its base class."""
    known = next(each for each in type(optimizer).__mro__ if _is_known(each) and "apply" in vars(each))
    return functools.partial(known.apply, optimizer)


def is_of_users(optimizer: Any) -> bool:
    """Whether a class of the optimizer is neither Keras' nor ours."""
    return not all(map(_is_known, _classes(optimizer)))


def _classes(optimizer: Any) -> list[type]:
    return [c for c in type(optimizer).__mro__ if issubclass(c, keras.optimizers.Optimizer)]


def _has_own_code(optimizer: Any) -> bool:
    return not all(map(_is_known, [*_code_of_update(optimizer), *optimizer.gradient_transformers]))


def _code_of_update(optimizer: Any) -> list[Any]:
    rate = own_learning_rate(optimizer)
    own_rate = callable(rate) and not isinstance(rate, keras.Variable)
    return [*_classes(optimizer), *([rate] if own_rate else [])]


def _is_known(code: Any) -> bool:
    module = getattr(code, "__module__", None) or ""
    return module.split(".")[0] in _KNOWN
