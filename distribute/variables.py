"""Moving variables that exist already to the strategy that uses them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from ..compat.variables import make_again


def move_variables(variables: Iterable[Any], strategy: tf.distribute.Strategy) -> bool:
    """Makes the TensorFlow variable inside each Keras variable again under `strategy`, unless it belongs to it already.

    The Keras variables stay the same objects and keep their values. What is not a Keras variable is left alone.

    Returns:
        Whether there was one to make again.

    Context: eager; cross-replica.
    """
    moved = False
    with strategy.scope():
        for variable in variables:
            movable = isinstance(variable, keras.Variable)
            if movable and not strategy.extended.variable_created_in_scope(variable.value):
                make_again(variable)
                moved = True
    return moved
