"""The layers of a model, their masks and the losses that they add."""

import contextlib
import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import keras
import tensorflow as tf

from ..shared_change import share_attribute
from ..upstream_places import ConcreteFunction, RestoredFunction, global_state


def is_own(layer: Any) -> bool:
    """Return whether the class of a layer is custom."""
    return not type(layer).__module__.startswith(("keras.src.", "unisono."))


def layers_of(model: Any) -> list[Any]:
    """Return the model and every layer in it, at any depth, in a fixed order; empty for objects that are not layers."""
    return list(model._flatten_layers()) if isinstance(model, keras.layers.Layer) else []


def layers_within(layer: Any) -> list[Any]:
    """Return the direct sublayers of a layer, without nested ones."""
    if not isinstance(layer, keras.layers.Layer):
        return []
    return list(layer._flatten_layers(recursive=False, include_self=False))


def computes_again(layer: Any) -> bool:
    """Return whether a layer was made under `keras.RematScope`."""
    return getattr(getattr(layer, "_remat_mode", None), "mode", None) is not None


def find_captures(layer: Any) -> list[Any]:
    """Return what the traced functions among a layer's attributes, such as those of a SavedModel, have captured."""
    traced = (each for each in vars(layer).values() if isinstance(each, ConcreteFunction | RestoredFunction))
    functions = [one for each in traced for one in getattr(each, "concrete_functions", [each])]
    return [captured for function in functions for captured in function.graph.external_captures]


takes_training = attrgetter("_call_has_training_arg")
"""Whether `layer.call` has the argument `training`."""


def arguments_of(layer: Any, call_spec: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the positional and named arguments of a call of `layer`; the first is positional where it can be."""
    given, parameters = call_spec.user_arguments_dict, layer._call_signature.parameters
    kinds = {name: parameter.kind for name, parameter in parameters.items()}
    starred = any(kind == inspect.Parameter.VAR_POSITIONAL for kind in kinds.values())
    first = next(iter(kinds), None)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for name, value in given.items():
        kind = kinds.get(name)
        if kind == inspect.Parameter.VAR_POSITIONAL:
            args += value
        elif kind == inspect.Parameter.VAR_KEYWORD:
            kwargs |= value
        elif kind == inspect.Parameter.POSITIONAL_OR_KEYWORD and (
            starred or (name == first and _of_tensors(value))
        ):
            args.append(value)
        else:
            kwargs[name] = value
    return args, kwargs


def _of_tensors(value: Any) -> bool:
    """Return whether Keras accepts this argument of a layer at a position."""
    return all(each is None or keras.ops.is_tensor(each) for each in keras.tree.flatten(value))


def own_weights(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the trainable variables of `layer` itself, without those of its sublayers."""
    return [v for v in layer._trainable_variables if layer.trainable]


def own_state(layer: keras.layers.Layer) -> list[keras.Variable]:
    """Return the non-trainable variables of `layer` itself, without random state."""
    return list(layer._non_trainable_variables)


def random_states_of(model: Any) -> list[keras.Variable]:
    """Return the states of the seed generators of the model and of every layer in it."""
    return [each.state for layer in layers_of(model) for each in layer._seed_generators]


def losses_of_layers(layer: Any) -> list[tuple[keras.layers.Layer, int, Any]]:
    """Return what `layer` and its sublayers have added with `add_loss`: each layer, the index of its loss, the loss."""
    each = [(part, part._get_own_losses()) for part in layers_of(layer)]
    return [(part, number, loss) for part, losses in each for number, loss in enumerate(losses)]


def forget_losses(model: Any, losses: list[Any]) -> None:
    """Drop the added losses of a traced step from the layers (their ids may be reused for other tensors)."""
    ids = {id(loss) for loss in losses}
    for layer in model._flatten_layers():
        layer._loss_ids.difference_update(ids)


def without_layer_losses(model: Any) -> contextlib.AbstractContextManager[None]:
    """Within it `model.losses` is a single zero (Keras reads an empty override as none)."""
    return share_attribute(model, "_losses_override", lambda _: [tf.zeros((), keras.config.floatx())])


def watch_calls(
    layer: keras.layers.Layer, watcher: Callable[[str, keras.layers.Layer, Any], None]
) -> contextlib.AbstractContextManager[None]:
    """Call `watcher("start", layer, inputs)` and `watcher("end", layer, outputs)` at every call."""

    def watch_call(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            watcher("start", layer, (args, kwargs))
            outputs = original(*args, **kwargs)
            watcher("end", layer, outputs)
            return outputs

        return call

    return share_attribute(layer, "call", watch_call)


def layouts_of(distribution: Any) -> Any:
    """Return the `keras.distribution.LayoutMap` of a `ModelParallel`; None for a `DataParallel`."""
    return getattr(distribution, "_layout_map", None)


def is_made_by_layer() -> bool:
    """Return whether the innermost name scope, in which a variable is being created, is that of a layer."""
    scopes = global_state.get_global_attribute("name_scope_stack")
    return bool(scopes) and isinstance(scopes[-1].caller, keras.layers.Layer)


def ignore_layout(tensor: Any, layout: Any) -> Any:
    """Return the tensor: a layout of an output is a hint, as what is computed where is derived from the weights."""
    return tensor
