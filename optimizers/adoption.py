"""Our classes, made from Keras' classes and from users' own.

`class_for(cls)` stands between `cls` and Keras' base class in the order in which methods are looked up: what `cls`
overrides keeps working and what it inherits is ours. So a subclass's own `update_step`, `apply` or `_backend_update_step`
calls our methods with `super()`.
"""

from __future__ import annotations

import importlib
from typing import Any

import keras

from .keras_internals import save_as, unpickle
from .optimizer import Optimizer

_classes: dict[type, type] = {keras.optimizers.Optimizer: Optimizer}

_homes = {keras.optimizers.LossScaleOptimizer: "..mixed_precision"}
"""Classes that a package above this one registers (`register_class`); it is imported when such a class is asked for."""


def class_for(cls: type) -> type:
    """The class with our pipeline for any class of Keras optimizers; made once.

    Args:
        cls: `keras.optimizers.Optimizer` or a subclass of it.

    Returns:
        A subclass of `cls` and of `unisono.optimizers.Optimizer`; `cls` itself if it is one already. Its instances are
        saved as those of `cls`, so that plain Keras opens them.
    """
    if issubclass(cls, Optimizer):
        return cls
    if cls in _homes and cls not in _classes:
        importlib.import_module(_homes[cls], __package__)
    if cls not in _classes:
        parent = next(base for base in cls.__mro__[1:] if issubclass(base, keras.optimizers.Optimizer))
        own = _make(cls, class_for(parent))
        save_as(own, cls)
        _classes[cls] = own
    return _classes[cls]


def register_class(cls: type, own: type) -> None:
    """Makes `own`, written by hand, the class that `class_for` and `adopt` give for `cls`; it is saved as `cls` is."""
    save_as(own, cls)
    _classes[cls] = own


def _make(cls: type, parent: type) -> type:
    names = {"__doc__": cls.__doc__, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, (cls, parent), names)


def publish(cls: type, module: str) -> type:
    """Our class for a class of Keras', as a public class of `module`.

    With a transformer or an aggregator an instance is saved as `unisono>Name`, which plain Keras refuses to open without
    us, rather than as an optimizer that would train differently.
    """
    own = class_for(cls)
    own.__module__ = module
    own.__doc__ = _with_arguments(cls.__doc__)
    extended: list[type] = []

    def extended_class() -> type:
        return extended[0]

    made = type(own.__name__, (own,), {"__doc__": own.__doc__, "__module__": module, "_extended_class": None})
    extended.append(keras.saving.register_keras_serializable("unisono", own.__name__)(made))
    own._extended_class = staticmethod(extended_class)
    return own


def adopt(optimizer: Any) -> Any:
    """Gives an instance of any Keras optimizer our pipeline, in place; its slots and settings stay.

    Args:
        optimizer: any `keras.optimizers.Optimizer`, a subclass of the user's own or a built one included; or what
            `keras.optimizers.get` takes.

    Returns:
        The same instance, now a `unisono.optimizers.Optimizer`.

    Raises:
        ValueError: it is no optimizer.

    Context: host.
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        optimizer = keras.optimizers.get(optimizer)
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        optimizer.__class__ = class_for(type(optimizer))
        optimizer.on_adopted()
    return optimizer


def rebuild(buffer: Any) -> Any:
    """What a copied or unpickled optimizer is made with; `buffer` is what Keras' pickling wrote."""
    return adopt(unpickle(buffer))


def _with_arguments(doc: str | None) -> str | None:
    if not doc or "\n    Args:\n" not in doc:
        return doc
    extra = (
        "        gradient_transformers: List of callables that take and return a list of\n"
        "            (gradient, variable) pairs; called in order on the aggregated,\n"
        "            unscaled gradients, before clipping.\n"
        "        gradient_aggregator: Callable that takes and returns such a list in replica\n"
        "            context; the default sums over all replicas.\n"
    )
    return doc.replace("\n    Args:\n", "\n    Args:\n" + extra, 1)
