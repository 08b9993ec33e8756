"""Moves variables of optimizers and metrics that were created elsewhere into the model's strategy."""

from typing import Any

import keras
import tensorflow as tf

from ... import optimizers
from ...compat.keras_private.layers import layers_of
from ...compat.keras_private.optimizers import optimizer_strategy, set_strategy
from ...compat.keras_private.training import set_strategy_of, strategy_of
from ...compat.keras_private.variables import raw_value
from ...distribute import keras_distribution
from ...distribute.moved_variables import move_variables
from ...distribute.step_context import here
from ...optimizers.building import inner_optimizers, optimizers_of
from ...state.trained_model import TrainedModel, record_of
from ..fit_checks import check_home, check_traced_functions
from .global_metrics import metrics_of


def place_with_model(model: TrainedModel) -> None:
    """Adopt the model's optimizers, and recreate their variables and its metrics' in its strategy, with their values."""
    held = [optimizers.adopt(optimizer) for optimizer in optimizers_of(model)]
    home = strategy_of(model)
    if home is None:
        return
    for optimizer in held:
        for part in (optimizer, *inner_optimizers(optimizer)):
            if optimizer_strategy(part) is not home:
                set_strategy(part, home)
            move_variables(part.variables, home)
    for metric in metrics_of(model):
        move_variables(metric.variables, home)


def bring_along(model: TrainedModel, method: str) -> None:
    """Move objects from outside the scope into the model's strategy: layers, pretrained ones, whole models.

    A model that was built outside any scope belongs to the strategy in whose scope its method is called, to that of a
    distribution of Keras, or to the strategy of the model that contains its layers. Raise `ValueError` if it, or one of its
    variables, belongs to another.
    """
    adopting = strategy_of(model) is None and _only_strategy(model)
    if adopting:
        set_strategy_of(model, adopting)
    check_home(model, method)
    home = strategy_of(model)
    with here.set_to(moves_weights=True):
        moved = home is not None and move_variables(model.weights, home)
    if home is not None and (move_variables(model.variables, home) or moved or adopting):
        trace_again(model)  # the compiled functions read the earlier variables
    check_traced_functions(model, method)


def trace_again(model: Any) -> None:
    """Drop the compiled functions of a model and of those in it."""
    for part in layers_of(model):
        if isinstance(part, keras.Model):
            part.train_function = part.test_function = part.predict_function = None


def remember_distribution(model: TrainedModel) -> None:
    """Let a model that is made in the scope of a distribution of Keras belong to its strategy."""
    if not tf.distribute.has_strategy() and keras.distribution.distribution() is not None:
        keras_distribution.accept_layouts_of_outputs()
        record_of(model).distribution = keras.distribution.distribution()


def _only_strategy(model: TrainedModel) -> tf.distribute.Strategy | None:
    """Return the strategy of the current scope, of a distribution of Keras that is or was set, or of the variables."""
    if record_of(model).runner is not None:
        return None
    if tf.distribute.has_strategy():
        return tf.distribute.get_strategy()
    distribution = record_of(model).distribution or keras.distribution.distribution()
    if distribution is not None:
        return keras_distribution.strategy_of(distribution)
    owners = (getattr(raw_value(variable), "distribute_strategy", None) for variable in model.variables)
    return next((owner for owner in owners if owner is not None), None)


def accumulates(optimizer: Any) -> bool:
    """Return whether the optimizer, or a nested one, accumulates the gradients of several calls for one update."""
    all_of_them = (optimizer, *inner_optimizers(optimizer))
    return any(getattr(each, "gradient_accumulation_steps", None) for each in all_of_them)
