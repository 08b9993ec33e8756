"""Tools that patch `keras.Model.fit` (`mlflow.autolog`, profilers, tracers) see the fit of our models, too.

Such a tool puts a function of its own in place of `keras.Model.fit`, which calls the one that was there. So a method of
ours gives that function where there is one, and Keras' own comes back to ours for a model of ours. It takes no frame on the
way of a batch. The tool may come first or we.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import keras

from ..compat.replaced import wrap_within
from ..compat.training import TensorFlowTrainer


class SeenByTools:
    """`fit = SeenByTools(fit)` in a mixin of models: what a patch of `keras.Model.fit` replaces.

    Args:
        function: the method; its name is that of the method of `keras.Model`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self._name = function, function.__name__
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        """Has Keras' own method come here for models of `owner`."""

        def around(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
            return (self.function if isinstance(model, owner) else original)(model, *args, **kwargs)

        wrap_within(name, around)
        self._unpatched = getattr(TensorFlowTrainer, name)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The method, or what a tool has put around it."""
        found = getattr(keras.Model, self._name)
        function = self.function if found is self._unpatched else found
        return function if instance is None else types.MethodType(function, instance)
