"""What is known of the code that takes part in an update: whether some is a user's, and whether it writes single rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from ...compat.optimizers import own_learning_rate
from ..building import inner_optimizers

_KNOWN = ("keras", "unisono")
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


def is_of_users(optimizer: Any) -> bool:
    """Whether a class of the optimizer is neither Keras' nor ours."""
    return not all(map(_is_known, _classes(optimizer)))


def _classes(optimizer: Any) -> list[type]:
    return [c for c in type(optimizer).__mro__ if issubclass(c, keras.optimizers.Optimizer)]


def _has_own_code(optimizer: Any) -> bool:
    rate = own_learning_rate(optimizer)
    parts: list[Any] = [*_classes(optimizer), *optimizer.gradient_transformers]
    if callable(rate) and not isinstance(rate, keras.Variable):
        parts.append(rate)
    return not all(_is_known(part) for part in parts)


def _is_known(code: Any) -> bool:
    module = getattr(code, "__module__", None) or ""
    return module.split(".")[0] in _KNOWN
