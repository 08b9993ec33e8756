"""The optimizers that a model holds: that of `compile`, those of its own steps, and those of its layers."""

from typing import Any

from ..compat.keras_private.layers import layers_of
from .building import attributes_of


def optimizers_of(model: Any, of_layers: bool = False) -> list[Any]:
    """Return the optimizers among the attributes of any model, each once, that of `compile` first.

    Attributes may be lists, tuples and dicts of them, if their names are public. Where a custom step trains the model,
    those of its layers and of models within it count too, since such a step may use them; in any case with `of_layers`.
    """
    custom_step = getattr(model, "_overrides_step", lambda name: True)("train_step")
    holders = [model, *layers_of(model)[1:]] if custom_step or of_layers else [model]
    found = [
        getattr(model, "optimizer", None),
        *(each for holder in holders for each in attributes_of(holder)),
    ]
    return list({id(each): each for each in found if each is not None}.values())
