"""Lets tools that patch `keras.Model.fit` (`mlflow.autolog`, profilers, tracers) see the fit of our models, too."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from keras import Model as KerasModel  # also where a program has put ours in its place

from ..compat.keras_private.training import TensorFlowTrainer
from ..compat.patches import wrap_within


class SeenByTools:
    """`fit = SeenByTools(fit)` in a mixin of models: the method that a patch of `keras.Model.fit` replaces.

    A method of ours returns the tool's function where there is one, and Keras' own calls ours for a model of ours. The
    tool may be loaded before or after Unisono. The method has the name of that of `keras.Model`.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self._name = function, function.__name__
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        """Lets Keras' own method call this one for models of `owner`."""

        def around(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
            return (self.function if isinstance(model, owner) else original)(model, *args, **kwargs)

        wrap_within(name, around)
        self._unpatched = getattr(TensorFlowTrainer, name)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """The method, or the wrapper of a tool."""
        found = getattr(KerasModel, self._name)
        function = self.function if found is self._unpatched else found
        return function if instance is None else types.MethodType(function, instance)
