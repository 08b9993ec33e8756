"""The model classes: Keras' own, with our `Trainer` as an additional base."""

import contextlib
import functools
import io
import json
import os
import tempfile
import zipfile
from typing import Any, Self, cast

import keras
import tensorflow as tf
from keras import Model as KerasModel

from ..compat.keras_private.serialization import (
    make_unpickle_arguments,
    our_classes,
    save_as,
    save_under,
    unpickle,
)
from ..compat.patches import wrap
from ..compat.upstream_places import Functional as KerasFunctional
from ..compat.upstream_places import TensorFlowTrainer
from ..distribute.arguments import show, truth
from ..distribute.moved_variables import prepare_variables
from ..distribute.objects import download
from ..distribute.storage import is_store_url, is_url, path_text, storage_path
from ..state.trained_model import batch_norms_of
from .pipeline.pipeline_runner import attach
from .step.variable_placement import bring_along, place_with_model, remember_distribution, trace_again
from .trainer import Trainer


class Model(keras.Model, Trainer):  # pyright: ignore[reportGeneralTypeIssues]  (`Trainer` is a keras.Model for it)
    """`keras.Model`, trained by Unisono: `Model(inputs, outputs)`, or a base class for custom models.

    It is a Keras model in every other respect. A model of plain Keras layers is saved as a plain Keras model.

    Examples:
        >>> inputs = keras.Input((4,))
        >>> model = unisono.Model(inputs, keras.layers.Dense(2)(inputs))
        >>> isinstance(model, keras.Model)
        True
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Return a Functional model for `Model(inputs, outputs)`."""
        if cls is Model and _is_functional(args, kwargs):
            return Functional.__new__(Functional, *args, **kwargs)
        instance = super().__new__(cls)
        prepare_variables()
        attach(instance)
        remember_distribution(instance)
        return instance

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if _is_functional(args, kwargs) and not isinstance(self, KerasFunctional):
            _put_functional_below(type(self))
            TensorFlowTrainer.__init__(self)
            KerasFunctional.__init__(self, *args, **kwargs)
        else:
            super().__init__(*args, **kwargs)

    def __reduce__(self) -> Any:
        """Let copies by `copy`, `pickle` and `joblib` train with Unisono, too; the bytes are those of a `.keras` file."""
        return rebuild, make_unpickle_arguments(super().__reduce__())

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Return a copy as by `pickle`, even where a tool has changed how `keras.Model` is copied."""
        make, arguments = self.__reduce__()
        return memo.setdefault(id(self), make(*arguments))


class Functional(KerasFunctional, Model):
    """`keras.Functional`, trained by Unisono: the result of `Model(inputs, outputs)`."""


class Sequential(keras.Sequential, Model):
    """`keras.Sequential`, trained by Unisono: a plain stack of layers, each with one input and one output.

    `Sequential(layers=None, trainable=True, name=None)`: `layers` is a list of `keras.layers.Layer`; with a
    `keras.Input(shape)` first the model is built at once, else with its first batch. `add(layer)` adds more
    layers. `trainable` is whether their weights are trained, and `name` a str.

    Examples:
        >>> model = unisono.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> model.output_shape
        (None, 2)
    """


save_as(Model, keras.Model)
save_under(Functional, f"{KerasFunctional.__module__}.{KerasFunctional.__name__}")
save_as(Sequential, keras.Sequential)


def _is_functional(args: Any, kwargs: Any) -> bool:
    return (
        len(args) == 2
        or (len(args) == 1 and "outputs" in kwargs)
        or ("inputs" in kwargs and "outputs" in kwargs)
    )


def _put_functional_below(cls: type) -> type:
    """Replace `Model` with `Functional` among the bases of a user's class (Keras does the same with its own)."""
    if cls is Model:
        return Functional
    if not issubclass(cls, Model):
        return cls
    cls.__bases__ = tuple(_put_functional_below(base) for base in cls.__bases__)
    return cls


def adopt(model: keras.Model) -> Model:
    """Convert a Keras model in place into one that trains with Unisono.

    In the scope of a strategy, a model that was built outside any scope is moved into this strategy.

    Args:
        model: a `keras.Model`: Functional, Sequential, from `keras.applications`, or of a custom class. It keeps
            its layers, weights and compiled state.

    Returns:
        `model` itself.

    Raises:
        TypeError: `model` is not a Keras model.

    Examples:
        >>> plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        >>> isinstance(unisono.adopt(plain), unisono.Model)
        True
    """
    return _adopt(model, {})


def _adopt(model: keras.Model, arguments: dict[str, Any]) -> Model:
    """See `adopt`; `arguments` are those of `compile` in the file that the model was loaded from."""
    if not isinstance(model, KerasModel):
        raise TypeError(
            f"`model` must be a keras.Model: pass an instance, or load a file first. Received: {show(model)} of type "
            f"{type(model).__name__}"
        )
    prepare_variables()
    attach(model)
    if isinstance(model, Model):
        bring_along(model, "adopt")
        return model
    model.__class__ = _make_adopted_class(type(model))  # pyright: ignore[reportArgumentType]  (a class can be hashed)
    compiled = model.compiled
    model._auto_steps = model.steps_per_execution == 1
    model._auto_jit = _leaves_jit_to_us(model, arguments)
    if model._auto_jit:
        model.jit_compile = False
    model._forget_compiled()
    bring_along(model, "adopt")
    if compiled and model.optimizer is not None:
        place_with_model(model)
    return model


def _leaves_jit_to_us(model: keras.Model, arguments: dict[str, Any]) -> bool:
    """Return whether `jit_compile` was left at "auto", which we do not save; Keras' True may be its default on a GPU."""
    if arguments:
        return "jit_compile" not in arguments or bool(
            arguments["jit_compile"] and "steps_per_execution" in arguments
        )
    return not model.jit_compile or bool(tf.config.list_physical_devices("GPU"))


@functools.cache
def _make_adopted_class(cls: type) -> type:
    known = {KerasModel: Model, KerasFunctional: Functional, keras.Sequential: Sequential}
    if cls in known:
        return known[cls]
    adopted = type(cls.__name__, (cls, Model), {"__module__": cls.__module__, "__doc__": cls.__doc__})
    adopted.__qualname__ = cls.__qualname__
    save_as(adopted, cls)
    return adopted


def load_model(
    filepath: Any, custom_objects: Any = None, compile: bool = True, safe_mode: bool = True
) -> Model:
    """Load a model as `keras.saving.load_model` does, to train it with Unisono.

    Args:
        filepath: a `.keras` (or legacy `.h5`) file, or its URL in a store.
        custom_objects: as in Keras.
        compile: as in Keras.
        safe_mode: as in Keras.

    Returns:
        The model, adopted.

    Examples:
        >>> keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]).save("model.keras")
        >>> unisono.load_model("model.keras").count_params()
        5
    """
    if is_store_url(filepath):
        with tempfile.TemporaryDirectory(prefix="unisono-") as folder:
            local = download(storage_path("filepath", filepath), folder)
            return load_model(local, custom_objects, compile, safe_mode)
    path_text("filepath", filepath)
    if custom_objects is not None and not isinstance(custom_objects, dict):
        raise TypeError(
            f"`custom_objects` must be a dict from names to classes. Received: {show(custom_objects)}"
        )
    truth("compile", compile)
    truth("safe_mode", safe_mode)
    if not is_url(filepath) and not os.path.exists(filepath):
        raise ValueError(
            f"File not found: `filepath` {os.fspath(filepath)!r} does not exist: pass a `.keras` or `.h5` file."
        )
    with our_classes():
        model = keras.saving.load_model(filepath, custom_objects, compile=compile, safe_mode=safe_mode)
    return _adopt(cast(keras.Model, model), _compile_arguments(filepath))


def rebuild(content: Any, read: Any = None) -> Model:
    """Make a copied or unpickled model from the result of `pickled`."""
    with our_classes():
        model = unpickle(content, read)
    return _adopt(model, _compile_arguments(content) if isinstance(content, io.BytesIO) else {})


def model_from_json(json_string: str, custom_objects: Any = None) -> Model:
    """Make a model as `keras.models.model_from_json` does, to train it with Unisono.

    Examples:
        >>> unisono.models.model_from_json(model.to_json()).count_params()
        5
    """
    with our_classes():
        return adopt(cast(keras.Model, keras.models.model_from_json(json_string, custom_objects)))


def _compile_arguments(filepath: Any) -> dict[str, Any]:
    """Return the arguments of `compile` in a `.keras` file; empty for any other file."""
    with contextlib.suppress(OSError, KeyError, TypeError, zipfile.BadZipFile):
        with zipfile.ZipFile(filepath) as archive:
            return json.loads(archive.read("config.json"))["compile_config"] or {}
    return {}


def clone_model(model: keras.Model, *args: Any, **kwargs: Any) -> Model:
    """Clone a model as `keras.models.clone_model` does, to train it with Unisono; Keras' own also clones our models.

    Examples:
        >>> unisono.clone_model(keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])).count_params()
        5
    """
    if not isinstance(model, KerasModel):
        raise TypeError(f"`model` must be a keras.Model. Received: {show(model)}")
    with our_classes():
        return adopt(cast(keras.Model, keras.models.clone_model(model, *args, **kwargs)))


def synchronize_batch_norm(model: keras.layers.Layer) -> list[str]:
    """Let every `BatchNormalization` of a model normalize with the whole batch, as on one device.

    Each layer all-reduces two sums for each channel, forward and backward. A saved model stays a plain Keras model.
    What `fit` has traced is traced again; create the `tf.function` of a custom loop after the call.

    Args:
        model: the model that you train, of any kind. Layers that it creates later, such as in `build`, are not changed.

    Returns:
        The names of the layers, including any that were synchronized before.

    Examples:
        >>> model = unisono.Sequential([keras.Input((4,)), keras.layers.BatchNormalization(name="norm")])
        >>> unisono.synchronize_batch_norm(model)
        ['norm']
    """
    if not isinstance(model, keras.layers.Layer):
        raise TypeError(f"`model` must be a keras.Model or a layer. Received: {show(model)}")
    found = batch_norms_of(model)
    if not all(layer.synchronized for layer in found):
        for layer in found:
            layer.synchronized = True
        trace_again(model)
    return [layer.name for layer in found]


def _clone_sequential_model(original: Any, model: keras.Sequential, *args: Any, **kwargs: Any) -> keras.Model:
    """Let `keras.models.clone_model` make our class of our `Sequential`; for other models nothing changes."""
    if not isinstance(model, Model):
        return original(model, *args, **kwargs)
    with our_classes():
        return _adopt(
            original(model, *args, **kwargs), cast(dict[str, Any], model.get_compile_config() or {})
        )


wrap("_clone_sequential_model", _clone_sequential_model)
