"""What Keras' distributions do not show in public."""

from typing import Any

import keras
from keras.src.backend.common import global_state


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
