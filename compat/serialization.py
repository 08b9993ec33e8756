"""The names under which Keras writes classes into files and finds them again."""

from __future__ import annotations

import keras
from keras.src.api_export import REGISTERED_OBJS_TO_NAMES
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


def save_under_keras_name(cls: type) -> None:
    """Saves `cls`, a subclass of a class of the same name in `keras.optimizers`, so that plain Keras opens the file.

    Keras looks for a registered object of that name first, and where there is none for the class in its own module: so
    the file opens as `cls` where this package is imported, and as Keras' class where it is not.
    """
    REGISTERED_OBJS_TO_NAMES.pop(cls, None)
    cls.__module__ = "keras.optimizers"
    keras.saving.get_custom_objects()[cls.__name__] = cls
