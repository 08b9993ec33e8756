"""The names under which Keras writes classes into files and finds them when it loads."""

from typing import Any

import keras

from ..upstream_places import GLOBAL_CUSTOM_NAMES, REGISTERED_OBJS_TO_NAMES, KerasSaveable


def save_as(cls: type, original: type) -> None:
    """Let Keras write objects of our `cls` as `original`, Keras' or a user's class: plain Keras can open these files."""
    for names in (REGISTERED_OBJS_TO_NAMES, GLOBAL_CUSTOM_NAMES):
        if original in names:
            names[cls] = names[original]


def save_under(cls: type, path: str) -> None:
    """Let Keras write objects of `cls` into files as `path`, "module.Name", for a class without an exported name."""
    REGISTERED_OBJS_TO_NAMES[cls] = path


def make_unpickle_arguments(reduced: Any) -> tuple[Any, Any]:
    """Return the arguments of `unpickle`, from the result of Keras' `__reduce__`, or of a tool's own serialization."""
    read, (content,) = reduced
    own = getattr(read, "__func__", None) is getattr(KerasSaveable._unpickle_model, "__func__", None)
    # Keras' function is bound to a class, which need not be importable by name.
    return content, None if own else read


def unpickle(content: Any, read: Any) -> Any:
    """Return the unpickled object, as one of Keras' classes."""
    return (read or KerasSaveable._unpickle_model)(content)


_ours: dict[str, type] = {}


def save_under_keras_name(cls: type) -> None:
    """Save `cls` under its name in `keras.optimizers`: it opens as `cls` in `our_classes()`, as Keras' own elsewhere."""
    REGISTERED_OBJS_TO_NAMES.pop(cls, None)
    cls.__module__ = "keras.optimizers"
    _ours[cls.__name__] = cls


def our_classes() -> keras.saving.CustomObjectScope:
    """Return a scope in which Keras opens files of `save_under_keras_name` as our classes, with all settings."""
    return keras.saving.custom_object_scope(_ours)
