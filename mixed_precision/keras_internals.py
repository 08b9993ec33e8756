"""What we touch that Keras does not promise; `tests/unit/test_mixed_precision_internals.py` holds it true."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src import api_export
from keras.src.optimizers import optimizer as keras_optimizer


def all_layers(model: keras.layers.Layer) -> list[keras.layers.Layer]:
    """Every layer within `model`, at any depth, without the model itself."""
    return list(model._flatten_layers(include_self=False, recursive=True))


def own_weights(layer: keras.layers.Layer) -> list[keras.Variable]:
    """The trainable variables that `layer` holds itself, not those of layers within it."""
    return [v for v in layer._trainable_variables if layer.trainable]


@contextlib.contextmanager
def watch_calls(
    layer: keras.layers.Layer, watcher: Callable[[str, keras.layers.Layer, Any], None]
) -> Iterator[None]:
    """Calls `watcher("start", layer, inputs)` and `watcher("end", layer, outputs)` at every call.

    Keras runs `layer.call` by attribute, so an attribute of the instance comes first. It is set past Keras'
    tracking and taken away again.
    """
    original = layer.call

    def call(*args: Any, **kwargs: Any) -> Any:
        watcher("start", layer, (args, kwargs))
        outputs = original(*args, **kwargs)
        watcher("end", layer, outputs)
        return outputs

    had_own = "call" in vars(layer)
    object.__setattr__(layer, "call", call)
    try:
        yield
    finally:
        if had_own:
            object.__setattr__(layer, "call", original)
        else:
            object.__delattr__(layer, "call")


def build_base_optimizer(optimizer: keras.optimizers.LossScaleOptimizer, variables: list[Any]) -> None:
    """`Optimizer.build`, past `LossScaleOptimizer.build`, which would make the scale's variables again."""
    keras_optimizer.Optimizer.build(optimizer, variables)


def optimizer_strategy(optimizer: keras.optimizers.Optimizer) -> Any:
    """The `tf.distribute.Strategy` under which `optimizer` made its variables."""
    return optimizer._distribution_strategy


def set_strategy(optimizer: keras.optimizers.Optimizer, strategy: Any) -> None:
    """Notes that the variables of `optimizer` belong to `strategy`."""
    optimizer._distribution_strategy = strategy


def scope_of(optimizer: keras.optimizers.Optimizer) -> Any:
    """The scope of the strategy that the variables of `optimizer` belong to; nothing to enter where it is current."""
    strategy = optimizer_strategy(optimizer)
    if strategy is tf.distribute.get_strategy():
        return contextlib.nullcontext()
    return strategy.scope()


def make_again(variable: keras.Variable) -> None:
    """Makes the `tf.Variable` inside of `variable` again, under the current strategy, with its value."""
    value = variable.numpy()
    variable._value = None
    variable._initialize(tf.constant(value, variable.dtype))


def save_under_keras_name(cls: type) -> None:
    """Saves `cls`, a subclass of a class of the same name in `keras.optimizers`, so that plain Keras opens the file.

    Keras looks for a registered object of that name first, and where there is none for the class in its own module: so
    the file opens as `cls` where this package is imported, and as Keras' class where it is not.
    """
    api_export.REGISTERED_OBJS_TO_NAMES.pop(cls, None)
    cls.__module__ = "keras.optimizers"
    keras.saving.get_custom_objects()[cls.__name__] = cls
