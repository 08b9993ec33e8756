"""The names under which Keras writes classes into files and finds them again."""

from __future__ import annotations

from typing import Any

import keras
from keras.src.api_export import REGISTERED_OBJS_TO_NAMES
from keras.src.saving.keras_saveable import KerasSaveable
from keras.src.saving.object_registration import GLOBAL_CUSTOM_NAMES
from keras.src.saving.serialization_lib import deserialize_keras_object

__all__ = ["deserialize_keras_object"]


def save_as(cls: type, original: type) -> None:
    """Has Keras write objects of `cls` into files as `original`: plain Keras then opens what we save.

    Args:
        cls: a class of ours.
        original: the class of Keras, or the one that a user registered.
    """
    for names in (REGISTERED_OBJS_TO_NAMES, GLOBAL_CUSTOM_NAMES):
        if original in names:
            names[cls] = names[original]


def save_under(cls: type, path: str) -> None:
    """Has Keras write objects of `cls` into files as `path`, "module.Name", of a class for which it exports no name."""
    REGISTERED_OBJS_TO_NAMES[cls] = path


def pickled(reduced: Any) -> tuple[Any, Any]:
    """What `unpickle` takes, of what `__reduce__` of Keras returned, or of a tool with a way of its own."""
    read, (content,) = reduced
    own = getattr(read, "__func__", None) is getattr(KerasSaveable._unpickle_model, "__func__", None)
    # Keras' function is bound to a class, which need not be found again by its name.
    return content, None if own else read


def unpickle(content: Any, read: Any) -> Any:
    """The object that was pickled, as one of Keras' classes."""
    return (read or KerasSaveable._unpickle_model)(content)


_ours: dict[str, type] = {}


def save_under_keras_name(cls: type) -> None:
    """Saves `cls`, a subclass of a class of the same name in `keras.optimizers`, under that name.

    Keras looks for a custom object of that name first and then in the module: so the file opens as `cls` within
    `our_classes()`, and as Keras' own class everywhere else.
    """
    REGISTERED_OBJS_TO_NAMES.pop(cls, None)
    cls.__module__ = "keras.optimizers"
    _ours[cls.__name__] = cls


def our_classes() -> keras.saving.CustomObjectScope:
    """A scope in which Keras opens what `save_under_keras_name` saved as our classes, with all of their settings."""
    return keras.saving.custom_object_scope(_ours)
