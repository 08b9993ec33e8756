"""Layout maps that do not do what their patterns promise."""

import difflib
import re
import warnings
from typing import Any

from ....compat.keras_private.layers import layers_of
from ....compat.keras_private.training import strategy_of
from ....state.trained_model import TrainedModel


def check_layouts(model: TrainedModel) -> None:
    """Warn once of patterns of a layout map that no variable matches: a renamed layer would be whole, silently."""
    home: Any = strategy_of(model)
    layouts = getattr(home, "layouts", None) or {}
    paths = [variable.path for variable in model.variables]
    paths += [f"{layer.path}/output" for layer in layers_of(model) if layer.path]
    for pattern in layouts:
        if any(re.fullmatch(pattern, path) for path in paths) or pattern in home.unmatched:
            continue
        home.unmatched.add(pattern)
        near = difflib.get_close_matches(pattern, paths, 1, 0.0)
        warnings.warn(
            f"The pattern {pattern!r} of the layout map matches no variable and no output, so it does nothing. The nearest "
            f"path is {near[0]!r}: a pattern must match a whole path.",
            stacklevel=2,
        )
