"""What we touch that Keras does not promise; `tests/unit/test_mixed_precision_internals.py` holds it true."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
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
