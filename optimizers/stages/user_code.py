"""Whether user code takes part in an update, and what is allowed where none does.

Keras' code and ours computes the same bits on every replica, has no side effects, and its rules are known by name.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.optimizers import own_learning_rate
from ...compat.tensorflow_graphs.guarded_writes import writes_only_where
from ...distribute.hardware.devices import is_gpu
from ...distribute.sharding.sharded_value import own_copy
from ..building import inner_optimizers

_KNOWN = ("keras", "unisono")
ELEMENTWISE = frozenset(
    getattr(keras.optimizers, name)
    for name in ["SGD", "Adam", "AdamW", "Adamax", "Nadam", "RMSprop", "Adagrad", "Adadelta", "Ftrl", "Lion"]
)
"""Keras' optimizers whose update rules treat each number by itself."""
_NAMELESS_RULES = ELEMENTWISE | {keras.optimizers.Lamb}
_DENSE_RULES = (keras.optimizers.Adam, keras.optimizers.Adamax, keras.optimizers.Nadam, keras.optimizers.Lamb)


def has_user_code(optimizer: Any, variables: Sequence[Any]) -> bool:
    """Return whether code that is neither Keras' nor ours takes part in an update: replicas may round differently."""
    for each in (optimizer, *inner_optimizers(optimizer)):
        if not all(map(_is_known, [*_code_of_update(each), *each.gradient_transformers])):
            return True
    constraints = (v.constraint for v in variables if isinstance(v, keras.Variable))
    return not all(constraint is None or _is_known(constraint) for constraint in constraints)


def if_true(condition: Any, then: Callable[[], Any], otherwise: Callable[[], Any] | None = None) -> None:
    """Add a conditional of branches that write, without collectives. Context: that of the branches."""

    def branch(fn: Callable[[], Any] | None) -> tf.Tensor:
        if fn is not None:
            fn()
        return tf.constant(True)

    tf.cond(condition, lambda: branch(then), lambda: branch(otherwise))


def write_where(
    condition: tf.Tensor,
    optimizer: Any,
    variables: Sequence[Any],
    write: Callable[[], Any],
    branch: Callable[..., None] = if_true,
) -> None:
    """Run `write` where `condition` is true: in the `branch`, or on a GPU, which it would stop, by selecting values."""
    on_gpu = variables and not tf.executing_eagerly() and is_gpu(str(own_copy(variables[0]).device))
    if on_gpu and not has_user_code(optimizer, variables):
        with writes_only_where(condition):
            write()
    else:
        branch(condition, write)


def makes_slices_dense(optimizer: Any) -> bool:
    """Return whether all rules are Keras' that make one tensor of a sparse gradient; others write the named rows alone."""
    rules = inner_optimizers(optimizer) or [optimizer]
    return all(isinstance(rule, _DENSE_RULES) for rule in rules)


def is_of_keras(optimizer: Any) -> bool:
    """Return whether an update runs Keras' code and ours alone, with numbers and Keras' schedules as settings."""
    settings = {name: value for name, value in vars(optimizer).items() if not name.startswith("_")}
    settings.pop("accumulated_weight", None)
    numbers = not any(isinstance(value, (tf.Variable, keras.Variable)) for value in settings.values())
    own_methods = {"update_step", "assign", "assign_add", "assign_sub"} & settings.keys()
    return numbers and not own_methods and all(map(_is_known, _code_of_update(optimizer)))


def needs_no_names(optimizer: Any) -> bool:
    """Return whether the update rule is one of Keras' that use only dtype, shape and optimizer state of a variable."""
    rule = type(optimizer).update_step
    known = any(rule is cls.update_step for cls in _NAMELESS_RULES)
    as_written = rule.__module__.startswith("keras.") and not hasattr(rule, "__wrapped__")
    return known and as_written and is_of_keras(optimizer)


def is_elementwise(optimizer: Any) -> bool:
    """Return whether the optimizer's update rule treats each number by itself: one of Keras' that do, or one that says so.

    A class with its own `update_step` says it with the attribute `elementwise = True`.
    """
    rule = type(optimizer).update_step
    owner = next(cls for cls in type(optimizer).__mro__ if "update_step" in vars(cls))
    return vars(owner).get("elementwise") is True or any(rule is cls.update_step for cls in ELEMENTWISE)


def apply_of(optimizer: Any) -> Callable[..., None]:
    """Return the `apply` of an optimizer without what a user's class does before it calls that of its base class."""
    known = next(each for each in type(optimizer).__mro__ if _is_known(each) and "apply" in vars(each))
    return functools.partial(known.apply, optimizer)


def has_own_apply(optimizer: Any) -> bool:
    """Return whether a user has written the `apply` of an optimizer."""
    return not _is_known(optimizer.apply)


def has_user_class(optimizer: Any) -> bool:
    """Return whether a class of the optimizer is neither Keras' nor ours."""
    return not all(map(_is_known, _classes(optimizer)))


def _classes(optimizer: Any) -> list[type]:
    return [c for c in type(optimizer).__mro__ if issubclass(c, keras.optimizers.Optimizer)]


def _code_of_update(optimizer: Any) -> list[Any]:
    rate = own_learning_rate(optimizer)
    own_rate = callable(rate) and not isinstance(rate, keras.Variable)
    return [*_classes(optimizer), *([rate] if own_rate else [])]


def _is_known(code: Any) -> bool:
    module = getattr(code, "__module__", None) or ""
    return module.split(".")[0] in _KNOWN
