"""What Keras' optimizers keep for themselves."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import tensorflow as tf
from keras.src.optimizers import optimizer as keras_optimizer


def track_apart(optimizer: keras.optimizers.Optimizer, name: str, variable: keras.Variable) -> None:
    """Makes `variable` an attribute that `tf.train.Checkpoint` saves, but none of Keras' own list of variables."""
    optimizer.__dict__[name] = variable
    optimizer._track_trackable(variable, name, overwrite=True)


def know_variable(optimizer: keras.optimizers.Optimizer, variable: Any, index: int) -> None:
    """Lets the optimizer find the slots of its variable number `index` by another variable, too."""
    optimizer._trainable_variables_indices[optimizer._var_key(variable)] = index


def unpickle(buffer: Any) -> keras.optimizers.Optimizer:
    """The reverse of Keras' own `__reduce__`, without the class that it was called on."""
    return keras.optimizers.Optimizer._unpickle_model(buffer)


def overwritten_by_gradient(variable: Any) -> bool:
    """Whether `variable` takes its "gradient" as its new value, as the scales of Keras' float8 layers do."""
    return bool(getattr(variable, "overwrite_with_gradient", False))


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
