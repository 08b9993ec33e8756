"""Saving and loading of an optimizer, in Keras' layout, so that plain Keras opens it."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from ..compat.keras_private.optimizers import own_variables
from ..compat.keras_private.serialization import make_unpickle_arguments
from .adoption import rebuild

_STAGES = ("gradient_transformers", "gradient_aggregator")


def config_of_stages(optimizer: Any) -> dict[str, Any]:
    """Return the configuration of the two arguments, if they are set."""
    transformers, aggregator = optimizer.gradient_transformers or None, optimizer.gradient_aggregator
    given = zip(_STAGES, (transformers, aggregator))
    return {name: keras.saving.serialize_keras_object(stage) for name, stage in given if stage is not None}


def with_stages(config: dict[str, Any], custom_objects: dict[str, Any] | None) -> dict[str, Any]:
    """Return a configuration with the two arguments as objects."""
    given = {name: config[name] for name in _STAGES if config.get(name) is not None}
    return config | {
        name: keras.saving.deserialize_keras_object(stage, custom_objects=custom_objects)
        for name, stage in given.items()
    }


class SavedState(keras.optimizers.Optimizer):
    """The state and the configuration of an optimizer. Context: its methods run on the host."""

    def get_weights(self) -> list[Any]:
        """Return the values of all `variables`, as NumPy arrays."""
        return [variable.numpy() for variable in self.variables]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Reverse `get_weights`."""
        super().set_weights(list(weights)[: len(own_variables(self))])
        extra = self.__dict__.get("accumulated_weight")
        if extra is not None:
            given = len(weights) > len(own_variables(self))
            extra.assign(weights[len(own_variables(self))] if given else 0.0)

    def save_own_variables(self, store: Any) -> None:
        """Save the state; between updates in Keras' own layout."""
        extra = self.__dict__.get("accumulated_weight")
        for index, variable in enumerate(self.variables):
            value = variable.numpy()
            if variable is not extra or value != 0:
                store[str(index)] = value

    def load_own_variables(self, store: Any) -> None:
        """Load what `save_own_variables` or plain Keras saved; from behind a loss scale, this optimizer's part."""
        extra = self.__dict__.get("accumulated_weight")
        if self.is_inner and not set(store.keys()):
            return  # the file has one optimizer, and the one around this one has loaded it
        store = _without_loss_scale(store, len(self.variables) - (extra is not None))
        if extra is not None and len(store.keys()) == len(self.variables) - 1:
            store = {**{key: store[key] for key in store.keys()}, str(len(self.variables) - 1): 0.0}  # noqa: SIM118
        super().load_own_variables(store)

    def get_config(self) -> dict[str, Any]:
        """Return Keras' configuration, with the two arguments if they are set."""
        return super().get_config() | config_of_stages(self)

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: dict[str, Any] | None = None) -> Any:
        """Reverse `get_config`."""
        return super().from_config(with_stages(config, custom_objects), custom_objects=custom_objects)

    def __reduce__(self) -> Any:
        """Keep our stages in copies, by adopting again what is saved as a Keras optimizer."""
        return rebuild, make_unpickle_arguments(super().__reduce__())


def _without_loss_scale(store: Any, count: int) -> Any:
    """Return the inner optimizer's part of what a `LossScaleOptimizer` saved for `count` variables: all but the first 4."""
    keys = set(store.keys())
    # Int64 scalars, with a scale.
    counters = [np.asarray(store[key]) for key in ("0", "2", "4") if key in keys]
    if len(keys) not in (count + 4, count + 5) or any(c.ndim or c.dtype.kind != "i" for c in counters):
        return store
    return {str(int(key) - 4): store[key] for key in keys if int(key) >= 4}
