"""Which class of ours replaces a class of Keras optimizers, and the conversion of existing optimizers.

Hand-written classes register themselves here, so this module imports none of them.
"""

import inspect
import re
from typing import Any

import keras

from ..compat.keras_private.optimizers import own_variables
from ..compat.keras_private.serialization import our_classes, save_as, unpickle
from ..compat.keras_private.variables import as_number
from ..distribute.moved_variables import prepare_variables
from .building import build_outside, inner_optimizers
from .hyperparameters import check_optimizer, with_checked_arguments

_classes: dict[type, type] = {}
_ARGS = "\nArgs:\n"
_ARGUMENTS = """\
    gradient_transformers: List of callables that take and return a list of
        (gradient, variable) pairs; called in order on the aggregated,
        unscaled gradients, before clipping.
    gradient_aggregator: Callable that takes and returns such a list in replica
        context; the default sums over all replicas.
"""


def class_for(cls: type) -> type:
    """Return the class with our stages for any class of Keras optimizers; made once.

    It is between `cls` and Keras' base class in the method resolution order: what `cls` overrides keeps working, what
    it inherits is ours, and its `update_step`, `apply` or `_backend_update_step` reaches our methods with `super()`.

    It is a subclass of `cls` and of `unisono.optimizers.Optimizer`; `cls` itself if that is one already. Its instances are
    saved as those of `cls`, so that plain Keras opens them.
    """
    if issubclass(cls, _classes[keras.optimizers.Optimizer]):
        return cls
    if cls not in _classes:
        parent = next(base for base in cls.__mro__[1:] if issubclass(base, keras.optimizers.Optimizer))
        names = {name: getattr(cls, name) for name in ("__doc__", "__module__", "__qualname__")}
        if cls.__module__.startswith("keras.") and "__init__" in vars(cls):
            names["__init__"] = with_checked_arguments(cls)
        if "build" in vars(cls):
            names["build"] = build_outside(cls.build)
        register_class(cls, type(cls.__name__, (cls, class_for(parent)), names))
    return _classes[cls]


def register_class(cls: type, own: type) -> None:
    """Make `own` the class that `class_for` and `adopt` use for `cls`; it is saved as `cls` is."""
    save_as(own, cls)
    _classes[cls] = own


def publish(cls: type, module: str) -> type:
    """Return our class as a public one of `module`; with custom stages it is saved as `unisono>Name`, not as Keras'."""
    own = class_for(cls)
    own.__module__ = module
    own.__doc__ = _public_docstring(cls)
    names = {"__doc__": own.__doc__, "__module__": module, "_unisono_extended_class": None}
    extended = keras.saving.register_keras_serializable("unisono")(type(own.__name__, (own,), names))
    own._unisono_extended_class = staticmethod(lambda: extended)
    return own


def adopt(optimizer: Any) -> Any:
    """Convert any Keras optimizer in place into a `unisono.optimizers.Optimizer`, and so those that it holds.

    Their state and settings are kept.

    Args:
        optimizer: any `keras.optimizers.Optimizer`, also user-defined or built; or what `keras.optimizers.get` takes.

    Returns:
        The same instance, now a `unisono.optimizers.Optimizer`.

    Raises:
        ValueError: it is not an optimizer.

    Examples:
        >>> optimizer = unisono.optimizers.adopt(keras.optimizers.Adam(1e-3))
        >>> isinstance(optimizer, unisono.optimizers.Optimizer)
        True
    """
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        with our_classes():
            optimizer = keras.optimizers.get(optimizer)
    for each in () if optimizer is None else (optimizer, *inner_optimizers(optimizer)):
        if type(each) is not class_for(type(each)):
            check_optimizer(each)
            each.__class__ = class_for(type(each))
            prepare_variables()
            for variable in own_variables(each):
                as_number(variable)
            each.on_adopted()
    return optimizer


def rebuild(content: Any, read: Any = None) -> Any:
    """Make a copied or unpickled optimizer of what `pickled` returned."""
    with our_classes():
        return adopt(unpickle(content, read))


def _public_docstring(cls: type) -> str:
    """Return Keras' docstring with our arguments, and an example that runs instead of Keras'."""
    # Python 3.13 removes the indentation itself.
    text = f"{inspect.cleandoc(cls.__doc__ or '')}\n"
    text = re.sub(r"\nExample:\n(\n?(>>>| ).*\n(.+\n)*)+", "", text)
    argument = "lambda variable: unisono.optimizers.SGD()" if cls.__name__ == "MultiOptimizer" else "0.01"
    return f"""{text.replace(_ARGS, _ARGS + _ARGUMENTS).rstrip()}

Examples:
    >>> optimizer, weight = unisono.optimizers.{cls.__name__}({argument}), keras.Variable(1.0)
    >>> count = optimizer.apply_gradients([(tf.constant(0.5), weight)])
    >>> float(weight) < 1.0
    True
"""
