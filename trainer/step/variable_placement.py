"""Variables live where the model lives: optimizers and metrics made elsewhere are moved."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ... import optimizers
from ...callbacks.trained_model import TrainedModel
from ...compat.layers import layers_of
from ...compat.optimizers import optimizer_strategy, set_strategy, wrapped_optimizers
from ...compat.training import set_strategy_of, strategy_of
from ...compat.variables import raw_value
from ...distribute.variables import move_variables
from ...optimizers.held_optimizers import optimizers_of
from ..checks import check_home
from .global_metrics import metrics_of


def place_with_model(model: TrainedModel) -> None:
    """Gives every optimizer of the model our stages, and optimizers and metrics a place in the model's strategy.

    A user may create a metric or an optimizer outside of `strategy.scope()`. Its Keras variables stay the same objects;
    the TensorFlow variables inside them are made again under the strategy, with their values.
    """
    held = [optimizers.adopt(optimizer) for optimizer in optimizers_of(model)]
    home = strategy_of(model)
    if home is None:
        return
    for optimizer in held:
        for part in (optimizer, getattr(optimizer, "inner_optimizer", None)):
            if part is not None and optimizer_strategy(part) is not home:
                set_strategy(part, home)
        move_variables(optimizer.variables, home)
    for metric in metrics_of(model):
        move_variables(metric.variables, home)


def bring_along(model: TrainedModel, method: str) -> None:
    """Brings what was made outside of the scope into the model's strategy: layers, pretrained ones, whole models.

    A model that was built outside of any scope belongs to the strategy in whose scope a method of it is called, or to that
    of the model which took in its layers.

    Raises:
        ValueError: the model, or one of its variables, belongs to another strategy.
    """
    adopting = strategy_of(model) is None and _only_strategy(model)
    if adopting:
        set_strategy_of(model, adopting)
    check_home(model, method)
    home = strategy_of(model)
    if home is not None and (move_variables(model.variables, home) or adopting):
        for part in layers_of(model):  # what they have compiled reads the variables that were there before
            if isinstance(part, keras.Model):
                part.train_function = part.test_function = part.predict_function = None


def _only_strategy(model: TrainedModel) -> tf.distribute.Strategy | None:
    """The strategy whose scope is entered, or that a variable of the model belongs to."""
    if tf.distribute.has_strategy():
        return tf.distribute.get_strategy()
    owners = (getattr(raw_value(variable), "distribute_strategy", None) for variable in model.variables)
    return next((owner for owner in owners if owner is not None), None)


def accumulates(optimizer: Any) -> bool:
    """Whether the optimizer, or one inside of it, joins the gradients of several calls into one update."""
    inside = [getattr(optimizer, "inner_optimizer", None), *wrapped_optimizers(optimizer)]
    own = getattr(optimizer, "gradient_accumulation_steps", None)
    return bool(own) or any(accumulates(each) for each in inside if each is not None)
