"""What Keras' distributions do not show in public."""

from __future__ import annotations

from typing import Any


def layouts_of(distribution: Any) -> Any:
    """The `keras.distribution.LayoutMap` of a `ModelParallel`; None for a `DataParallel`."""
    return getattr(distribution, "_layout_map", None)
